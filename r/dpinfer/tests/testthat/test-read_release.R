test_that("numbers are those of the file, to the bit", {
  found <- read_release("newton-2.release")
  expect_s3_class(found, "dp_release")
  expect_identical(found$format, "dpinfer-newton-release")
  expect_identical(unlist(found$header$names), c("coef[0]", "coef[1]", "noise_variance"))
  expect_identical(sprintf("%a", found$header$certified_epsilon), "0x1.ffffed4539e34p-1")
  expect_identical(sprintf("%a", found$arrays$scores[1, ]), c("0x1.2ae4b8a9ddddep-9", "-0x1.03aeccef77777p-9"))
  expect_identical(dim(found$arrays$transforms), c(4L, 2L, 2L))
  expect_length(found$arrays$means, 0)
})

test_that("older versions and other kinds are read", {
  expect_equal(read_release("trace-1.release")$version, 1)
  found <- read_release("statistic-2.release")
  expect_identical(found$format, "dpinfer-statistic-release")
  expect_output(print(found), "successes")
})

changed <- function(change) {
  content <- change(readBin("newton-2.release", "raw", 1e6))
  path <- tempfile(fileext = ".release")
  writeBin(content, path)
  path
}

test_that("what is damaged is refused", {
  flipped <- changed(function(content) {
    content[3000] <- xor(content[3000], as.raw(1))
    content
  })
  expect_error(read_release(flipped), class = "dpinfer_releaseformat")
  expect_error(read_release(changed(function(content) content[1:4000])), class = "dpinfer_releaseformat")
  expect_error(read_release(changed(function(content) raw(0))), class = "dpinfer_releaseformat")
  expect_error(read_release(tempfile()), class = "dpinfer_file")
})

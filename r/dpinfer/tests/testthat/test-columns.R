column <- function(...) dpinfer:::plain_column(...)
continuous <- unclass(dp_continuous(0, 10))

test_that("64-bit integers are their values, with or without bit64", {
  # 0, 1, 2^31, 2^40 + 3, -5 and a missing value, as bit64 holds them.
  whole <- c(0, 1, 2^31, 2^40 + 3, -5, NA)
  high <- c(floor(whole[1:5] / 2^32), -2^31)
  low <- c(whole[1:5] - high[1:5] * 2^32, 0)
  bytes <- function(value) as.raw((value %% 2^32) %/% 256^(0:3) %% 256)
  content <- unlist(Map(function(low, high) c(bytes(low), bytes(high)), low, high))
  made <- structure(readBin(content, "double", 6, endian = "little"), class = "integer64")
  expect_identical(dpinfer:::as_double(made)[1:5], whole[1:5])
  skip_if_not(dp_available(), "Python with dpinfer is not found")
  folder <- system.file("python", package = "dpinfer")
  read <- reticulate::import_from_path("dpinfer_bridge", path = folder, convert = FALSE)$Whole(
    jsonlite::base64_enc(content)
  )
  expect_identical(reticulate::py_str(read$identities()), "[0, 1, 2147483648, 1099511627779, -5, None]")
  expect_identical(reticulate::py_str(read$numbers()$tolist()), "[0.0, 1.0, 2147483648.0, 1099511627779.0, -5.0, nan]")
  skip_if_not_installed("bit64")
  expect_true(identical(as.vector(unclass(bit64::as.integer64(whole))), as.vector(unclass(made))))
})

test_that("what a user calls missing is missing, and codes or labels are read as the schema declares", {
  codes <- structure(c(1, 2, 99, NA, 97), labels = c(no = 1, yes = 2, refused = 99), na_values = 99, na_range = c(95, 98),
    class = c("haven_labelled_spss", "haven_labelled", "vctrs_vctr", "double"))
  expect_identical(column(codes, "x", continuous), c(1, 2, NA, NA, NA))
  expect_identical(column(codes, "x", unclass(dp_categorical(c("1", "2")))), c(1, 2, NA, NA, NA))
  expect_identical(column(codes, "x", unclass(dp_categorical(c("no", "yes")))), c("no", "yes", NA, NA, NA))
  expect_identical(column(codes, "x", unclass(dp_binary("yes", "no"))), c("no", "yes", NA, NA, NA))
  skip_if_not_installed("haven")
  made <- haven::labelled_spss(c(1, 2, 99), c(no = 1, yes = 2), na_values = 99)
  expect_identical(column(made, "x", continuous), c(1, 2, NA))
  expect_identical(column(haven::labelled(c(1, haven::tagged_na("a"))), "x", continuous)[1], 1)
})

test_that("what a class tells is refused by the column's name, before a value is looked at", {
  times <- list(as.Date("2020-01-01"), as.POSIXct("1970-01-01", tz = "UTC"), as.POSIXlt("1970-01-01", tz = "UTC"), as.difftime(3, units = "mins"))
  for (values in times) {
    expect_error(column(values, "day", continuous), "column 'day'.*2020-01-01", class = "dpinfer_argument")
  }
  expect_error(column(times[[4]], "day", unclass(dp_ignored())), "'day'")
  expect_identical(column(times[[1]], "day", unclass(dp_categorical("2020-01-01"))), "2020-01-01")
  expect_identical(column(times[[2]], "day", unclass(dp_ignored())), "1970-01-01T00:00:00Z")
  odd <- list(complex(1), raw(1), list(1), matrix(1, 1, 1), data.frame(a = 1), structure(1, class = "units"),
    structure(2020.5, class = "yearmon"), quote(x), expression(x), structure(1, class = "currency"))
  for (values in odd) {
    expect_error(column(values, "odd", continuous), "'odd'", class = "dpinfer_argument")
  }
})

test_that("each value is read by itself, whatever its class", {
  sent <- function(...) unclass(dpinfer:::raw_column(...))
  expect_identical(sent(factor(c("b", NA, "a")), "x"), c("b", NA, "a"))
  expect_identical(sent(c(TRUE, NA), "x"), c("true", NA))
  expect_identical(sent(I(1:2), "x"), c(1, 2))
  expect_identical(sent(structure(1, label = "Age", class = c("labelled", "numeric")), "x"), 1)
  if (l10n_info()[["UTF-8"]]) {
    expect_identical(sent(c("\xff", "fine"), "x"), c(NA, "fine"))
  }
  expect_identical(sent(structure("a", class = "noquote"), "x"), "a")
  expect_identical(sent(ordered("low", c("low", "high")), "x"), "low")
  latin <- "caf\xe9"
  Encoding(latin) <- "latin1"
  expect_identical(sent(latin, "x"), "caf\u00e9")
})

test_that("two columns of one name are refused", {
  twice <- data.frame(a = 1, a = 2, check.names = FALSE)
  expect_error(dpinfer:::raw_columns(twice), "two are called 'a'", class = "dpinfer_argument")
})

people <- data.frame(age = c(10, 30, NA, 50), job = factor(c("cook", "nurse", "cook", NA)), grade = ordered(
  c("low", "mid", "high", "low"), c("low", "mid", "high")
))
keeps <- function(condition, env = parent.frame()) dpinfer:::kept_records(condition, people, env)

test_that("a subset is a condition that each record meets by itself", {
  limit <- 20
  jobs <- c("cook", "clerk")
  expect_identical(keeps(quote(age > limit)), c(FALSE, TRUE, FALSE, TRUE))
  expect_identical(keeps(quote(job %in% jobs & !is.na(age))), c(TRUE, FALSE, FALSE, FALSE))
  expect_identical(keeps(quote(job == "cook")), c(TRUE, FALSE, TRUE, FALSE))
  expect_identical(keeps(quote(grade >= "mid")), c(FALSE, TRUE, TRUE, FALSE))
  expect_identical(keeps(quote((age - 5)^2 < 100 | age %% 50 == 0)), c(TRUE, FALSE, FALSE, TRUE))
  rows <- c(TRUE, TRUE, FALSE, TRUE)
  refused <- expression(age > mean(age), age > quantile(age, 0.9), rows, 1:2, duplicated(job), age > rows, order(age) < 3,
    cumsum(age) < 10, rank(age) > 1, age > min(age), !duplicated(age), job %in% job[1], seq_along(age) < 3, limit > 3,
    age > c(1, 2), (function(x) x > 1)(age), base::rev(age) > 1, ifelse(age > 1, 1, 0) > 0, TRUE, age, lag(age) > 1)
  for (condition in as.list(refused)) {
    expect_error(keeps(condition), "subset must be", class = "dpinfer_argument")
  }
})

test_that("whether a subset keeps a record depends on no other record", {
  set.seed(2)
  rows <- data.frame(a = rnorm(50), b = sample(c("u", "v", NA), 50, TRUE))
  conditions <- expression(a > 0, a^2 < 1 & b == "u", b %in% c("u", "w") | is.na(b), !(a * 3 > 1), round(a, 1) > 0)
  for (condition in as.list(conditions)[1:4]) {
    whole <- dpinfer:::kept_records(condition, rows, globalenv())
    alone <- vapply(1:50, function(k) dpinfer:::kept_records(condition, rows[k, ], globalenv()), NA)
    expect_identical(alone, whole)
  }
  expect_error(dpinfer:::kept_records(conditions[[5]], rows, globalenv()), "round")
})

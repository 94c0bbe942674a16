#' Read a release without Python
#'
#' A release is what a private run has published: noisy sums and public settings. This reader is R alone. Numbers are
#' those of the file to the last bit. It executes nothing, and refuses a file whose checksums are not right.
#'
#' @param path A file that `save()` of Python or [dp_write()] wrote.
#' @param x A release.
#' @param ... Not used.
#' @return An object of class `dp_release`: `format`, `version`, `header` (what the release states, a list) and
#'   `arrays` (numbers, with the dimensions of the file). `header$certified_epsilon` is `NULL` where no guarantee is
#'   claimed. That the stated epsilon follows from the events is not checked here: a certificate is for that.
#' @export
read_release <- function(path) {
  members <- tryCatch(zip_members(path), warning = function(w) damaged(), error = function(e) {
    if (inherits(e, "dpinfer_error")) stop(e) else damaged()
  })
  if (is.null(members[["release.json"]])) {
    refuse("path must name a release: the file has no release.json", "releaseformat")
  }
  document <- tryCatch(
    jsonlite::fromJSON(rawToChar(members[["release.json"]]), simplifyVector = FALSE),
    error = function(e) damaged()
  )
  if (!is.character(document$format) || !grepl("^dpinfer-([a-z-]+-)?release$", document$format)) {
    refuse("path must name a dpinfer release, got another kind of file", "releaseformat")
  }
  if (!is.numeric(document$version) || !document$version %in% c(1, 2)) {
    refuse("the release has a format version that this version of dpinfer does not read", "releaseformat")
  }
  arrays <- members[names(members) != "release.json"]
  names(arrays) <- sub("\\.npy$", "", names(arrays))
  structure(
    list(format = document$format, version = document$version, header = document$release,
      arrays = lapply(arrays, npy_array)),
    class = "dp_release"
  )
}

damaged <- function() refuse("the file is damaged, or is no release", "releaseformat")

#' @rdname read_release
#' @export
print.dp_release <- function(x, ...) {
  header <- x$header
  cat(x$format, ", version ", x$version, "\n", sep = "")
  epsilon <- header$certified_epsilon
  stated <- if (is.null(epsilon)) "none" else format(epsilon, digits = 6)
  cat("states epsilon ", stated, " at delta ", format(header$delta), " under ", header$adjacency, "\n", sep = "")
  if (!isTRUE(header$secure)) cat("NOT PRIVATE: the noise came from a seeded generator\n")
  for (leak in header$leaks) cat("NOT PRIVATE as a whole:", leak, "\n")
  cat("parameters:", paste(unlist(header$names), collapse = ", "), "\n")
  for (name in names(x$arrays)) {
    shape <- dim(x$arrays[[name]])
    cat("  ", name, ": ", paste(if (is.null(shape)) length(x$arrays[[name]]) else shape, collapse = " x "), "\n", sep = "")
  }
  invisible(x)
}

number_at <- function(content, start, size) sum(as.integer(content[start + seq_len(size) - 1]) * 256^(seq_len(size) - 1))

# The members of a zip that stores them as they are, by its central directory.
zip_members <- function(path) {
  if (!is.character(path) || length(path) != 1 || !file.exists(path)) {
    refuse("path must name a file that is there", "file")
  }
  content <- readBin(path, "raw", file.size(path))
  end <- length(content) - 21
  if (end < 1 || !identical(content[end + 0:3], as.raw(c(0x50, 0x4b, 5, 6)))) damaged()
  at <- number_at(content, end + 16, 4) + 1
  members <- list()
  for (k in seq_len(number_at(content, end + 10, 2))) {
    if (!identical(content[at + 0:3], as.raw(c(0x50, 0x4b, 1, 2)))) damaged()
    sizes <- c(number_at(content, at + 20, 4), number_at(content, at + 24, 4))
    if (number_at(content, at + 10, 2) != 0 || sizes[1] != sizes[2]) damaged()
    lengths <- vapply(c(28, 30, 32), function(place) number_at(content, at + place, 2), 0)
    name <- rawToChar(content[at + 45 + seq_len(lengths[1])])
    own <- number_at(content, at + 42, 4) + 1
    start <- own + 30 + number_at(content, own + 26, 2) + number_at(content, own + 28, 2)
    if (start + sizes[1] - 1 > length(content) || !is.null(members[[name]])) damaged()
    value <- content[start - 1 + seq_len(sizes[1])]
    check_sum(value, content[at + 16:19])
    members[[name]] <- value
    at <- at + 46 + sum(lengths)
  }
  members
}

# CRC-32, as gzip checks it: the same bytes, stored, in a gzip file.
check_sum <- function(value, sum) {
  starts <- seq(1, max(1, length(value)), by = 65535)
  blocks <- lapply(starts, function(start) {
    size <- min(65535, length(value) - start + 1)
    bytes <- as.raw(c(start == starts[length(starts)], size %% 256, size %/% 256, 255 - size %% 256, 255 - size %/% 256))
    c(bytes, value[start - 1 + seq_len(size)])
  })
  whole <- length(value)
  size <- as.raw((whole %/% 256^(0:3)) %% 256)
  stream <- c(as.raw(c(0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255)), unlist(blocks), sum, size)
  found <- tryCatch(memDecompress(stream, "gzip"), error = function(e) damaged())
  if (!identical(found, value)) damaged()
}

npy_array <- function(content) {
  if (length(content) < 10 || !identical(content[1:8], as.raw(c(0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0)))) damaged()
  start <- 10 + number_at(content, 9, 2)
  head <- rawToChar(content[11:start])
  pattern <- "^\\{'descr': '([<>|])([biuf])([1248])', 'fortran_order': (True|False), 'shape': \\(([0-9, ]*)\\), \\} *\n$"
  told <- regmatches(head, regexec(pattern, head))[[1]]
  if (length(told) == 0) damaged()
  shape <- as.numeric(regmatches(told[6], gregexpr("[0-9]+", told[6]))[[1]])
  body <- content[-seq_len(start)]
  size <- as.integer(told[4])
  if (length(body) != prod(shape) * size) damaged()
  order <- if (told[2] == ">") "big" else "little"
  values <- numbers(body, told[3], size, order)
  if (length(shape) < 2) {
    return(values)
  }
  if (told[5] == "True") array(values, shape) else aperm(array(values, rev(shape)))
}

numbers <- function(body, kind, size, order) {
  count <- length(body) / size
  if (kind == "b") {
    return(body == as.raw(1))
  }
  if (kind == "f") {
    if (size < 4) damaged()
    return(readBin(body, "double", count, size = size, endian = order))
  }
  # Integers as doubles, exact to 2^53.
  bytes <- matrix(as.integer(body), nrow = size)
  if (order == "big") bytes <- bytes[rev(seq_len(size)), , drop = FALSE]
  negative <- kind == "i" & bytes[size, ] > 127
  bytes[, negative] <- 255L - bytes[, negative]
  values <- colSums(bytes * 256^(seq_len(size) - 1))
  values[negative] <- -values[negative] - 1
  if (any(abs(values) > 2^53)) refuse("the release has whole numbers beyond 2^53", "releaseformat")
  values
}

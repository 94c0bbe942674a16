state <- new.env(parent = emptyenv())

refuse <- function(message, kind = "argument") {
  stop(structure(class = c(paste0("dpinfer_", kind), "dpinfer_error", "error", "condition"),
    list(message = message, call = NULL)))
}

#' Whether the Python library is found
#'
#' All but [read_release()] needs Python with `dpinfer` and its extra `formula`. Set the environment variable
#' `RETICULATE_PYTHON` to the Python that has it.
#'
#' @return `TRUE` or `FALSE`.
#' @export
dp_available <- function() {
  found <- tryCatch(bridge(), dpinfer_error = function(error) NULL)
  !is.null(found)
}

bridge <- function() {
  if (is.null(state$bridge)) {
    folder <- system.file("python", package = "dpinfer")
    state$bridge <- tryCatch(
      reticulate::import_from_path("dpinfer_bridge", path = folder, convert = TRUE),
      error = function(error) refuse(paste("Python with dpinfer is not found, or it has another version than this",
        "package: install it with pip install 'dpinfer[formula]', and set RETICULATE_PYTHON to that Python before R",
        "starts"), "unavailable")
    )
  }
  state$bridge
}

# Every call of Python: one text goes there and one comes back, and its errors become errors of R, in its words and
# without its traceback.  Numbers go as the bytes of doubles: whatever the versions of reticulate and NumPy, no bit is lost.
ask <- function(.name, ..., fit = NULL) {
  given <- jsonlite::toJSON(lapply(list(...), packed), auto_unbox = TRUE, null = "null", na = "null")
  returned <- bridge()$answer(.name, fit, as.character(given))
  answer <- jsonlite::fromJSON(returned[[1]], simplifyVector = FALSE)
  for (text in answer$warnings) {
    warning(text, call. = FALSE)
  }
  if (!is.null(answer$kind)) {
    refuse(answer$message, answer$kind)
  }
  value <- unpacked(answer$value)
  if (is.null(returned[[2]])) value else c(value, list(fit = returned[[2]]))
}

packed <- function(value) {
  bytes <- function() jsonlite::base64_enc(writeBin(as.double(unclass(value)), raw(), endian = "little"))
  if (inherits(value, "dp_numbers")) {
    return(list(array = bytes()))
  }
  if (inherits(value, "dp_whole")) {
    return(list(whole = bytes()))
  }
  if (is.numeric(value)) {
    return(list(number = bytes()))
  }
  if (is.list(value)) {
    return(lapply(value, packed))
  }
  value
}

unpacked <- function(value) {
  if (!is.list(value)) {
    return(value)
  }
  if (is.null(value[["array"]])) {
    found <- lapply(value, unpacked)
    texts <- length(found) > 0 && is.null(names(found)) &&
      all(vapply(found, function(own) is.character(own) && length(own) == 1, NA))
    return(if (texts) unlist(found) else found)
  }
  content <- jsonlite::base64_dec(value[["array"]])
  numbers <- readBin(content, "double", length(content) / 8, endian = "little")
  shape <- as.numeric(unlist(value$shape))
  if (length(shape) < 2) numbers else array(numbers, shape)
}

# An argument out of some words, the first by default.
one_of <- function(value, choices, name) {
  if (identical(value, choices)) {
    return(choices[1])
  }
  if (!is.character(value) || length(value) != 1 || !value %in% choices) {
    refuse(sprintf("%s must be one of %s", name, paste0("\"", choices, "\"", collapse = ", ")))
  }
  value
}

handle <- function(fit) {
  if (is.null(fit$python) || reticulate::py_is_null_xptr(fit$python)) {
    refuse(paste("fit must be of this session: what saveRDS() keeps of it has no posterior to ask.",
      "Keep fits with dp_save() and read them with dp_load()"))
  }
  fit$python
}

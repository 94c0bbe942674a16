#' What is public about a table
#'
#' A schema says the kind, the bounds and the categories of each column. It must come from a codebook, a questionnaire or
#' the units of the quantity, never from the records: a bound that is found in the records says something about them.
#'
#' @param ... Columns, named as in the table: what the other functions return.
#' @param missing What happens to a record without a value that the formula uses: `"drop"` or `"refuse"`. Only `"drop"`
#'   keeps a record from stopping the run.
#' @param missing_values Further spellings of "no value".
#' @param lower,upper Public bounds. Values are clamped to them. Left out, they are to be released with noise:
#'   `unknown = "bounds"` of [dp_glm()].
#' @param mean,sd Public mean and standard deviation, where they are known.
#' @param categories Labels. Left out, they are to be released with noise: `unknown = "categories"` of [dp_glm()].
#' @param reference The base level, by default the first.
#' @param other A label that stands for all others; without it a label that is not declared stops the run.
#' @param positive,negative Spellings of the two values.
#' @return A `dp_schema`, or one column of it.
#' @examples
#' dp_schema(
#'   age = dp_continuous(17, 90),
#'   job = dp_categorical(c("clerk", "cook", "nurse"), reference = "clerk"),
#'   rich = dp_binary("yes", "no")
#' )
#' @export
dp_schema <- function(..., missing = c("drop", "refuse"), missing_values = c("", "?")) {
  columns <- list(...)
  named <- names(columns)
  if (length(columns) == 0 || is.null(named) || any(named == "") || anyDuplicated(named)) {
    refuse("schema must have columns with distinct names: dp_schema(age = dp_continuous(0, 120))")
  }
  if (!all(vapply(columns, inherits, NA, "dp_column"))) {
    refuse("every column of a schema must be made by dp_continuous(), dp_categorical(), dp_binary() or dp_ignored()")
  }
  table <- list(missing = match.arg(missing), missing_values = as.list(missing_values))
  structure(list(table = table, columns = lapply(columns, unclass)), class = "dp_schema")
}

column <- function(kind, ...) {
  given <- list(...)
  structure(c(list(kind = kind), given[!vapply(given, is.null, NA)]), class = "dp_column")
}

#' @rdname dp_schema
#' @export
dp_continuous <- function(lower = NULL, upper = NULL, mean = NULL, sd = NULL) {
  if (is.null(lower) != is.null(upper)) {
    refuse("lower and upper must be given together, or neither")
  }
  bounds <- if (is.null(lower)) NULL else list(check_number(lower, "lower"), check_number(upper, "upper"))
  column("continuous", bounds = bounds, mean = mean, sd = sd)
}

#' @rdname dp_schema
#' @export
dp_categorical <- function(categories = NULL, reference = NULL, other = NULL) {
  column("categorical", categories = if (is.null(categories)) NULL else as.list(as.character(categories)),
    reference = reference, other = other)
}

#' @rdname dp_schema
#' @export
dp_binary <- function(positive, negative) {
  column("binary", positive = as.list(spelled(positive)), negative = as.list(spelled(negative)))
}

#' @rdname dp_schema
#' @export
dp_ignored <- function() column("ignore")

#' A schema to fill in, for the columns of a table
#'
#' Prints the code of a [dp_schema()] with a gap for each number and category, from the names and classes of the columns
#' alone: no value is read, nor the levels of a factor, which often come from the values.
#'
#' @param data A data frame.
#' @return The code, invisibly.
#' @examples
#' dp_schema_blank(data.frame(age = c(20, 30), job = c("cook", "clerk"), rich = c(TRUE, FALSE)))
#' @export
dp_schema_blank <- function(data) {
  if (!is.data.frame(data)) {
    refuse("data must be a data frame")
  }
  named <- column_names(data)
  gaps <- vapply(named, function(name) blank_column(data[[name]]), "")
  quoted <- ifelse(named == make.names(named), named, paste0("`", named, "`"))
  code <- paste0("dp_schema(\n", paste0("  ", quoted, " = ", gaps, collapse = ",\n"), "\n)")
  cat("# Fill in what is public, from a codebook, never from the records.\n", code, "\n", sep = "")
  invisible(code)
}

blank_column <- function(values) {
  if (is.logical(values)) {
    "dp_binary(TRUE, FALSE)"
  } else if (is.factor(values) || is.character(values)) {
    "dp_categorical(categories = )"
  } else if (inherits(values, c("integer64", "haven_labelled")) || (is.numeric(values) && !is.object(values))) {
    "dp_continuous(lower = , upper = )"
  } else {
    "dp_ignored()"
  }
}

#' @export
print.dp_schema <- function(x, ...) {
  cat("public schema of", length(x$columns), "columns\n")
  for (name in names(x$columns)) {
    own <- x$columns[[name]]
    told <- switch(own$kind,
      continuous = if (is.null(own$bounds)) "bounds unknown" else paste(unlist(own$bounds), collapse = " to "),
      categorical = if (is.null(own$categories)) "categories unknown" else paste(unlist(own$categories), collapse = ", "),
      binary = paste(own$positive[[1]], "or", own$negative[[1]]),
      ""
    )
    cat(sprintf("  %-20s %-12s %s\n", name, own$kind, told))
  }
  invisible(x)
}

spelled <- function(value) {
  # TRUE of R is "true" in every reader of tables.
  if (is.logical(value)) tolower(as.character(value)) else as.character(value)
}

check_number <- function(value, name) {
  if (inherits(value, "integer64")) {
    value <- as_double(value)
  }
  if (!is.numeric(value) || is.object(value) || length(value) != 1 || is.na(value)) {
    refuse(paste(name, "must be one number"))
  }
  as.numeric(value)
}

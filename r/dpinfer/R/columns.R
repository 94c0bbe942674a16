# Columns of a table as plain values.  What a column's class tells is public: it is refused, or chosen, before a value
# is looked at.  Each value is then read by itself, in Python.

# Classes whose numbers mean what they are.
plain_classes <- c("AsIs", "labelled", "haven_labelled", "vctrs_vctr", "double", "integer", "numeric", "character",
  "noquote")
moments_of_time <- c("Date", "POSIXct", "POSIXlt", "IDate")

# Numbers, whole numbers or texts, NA where a value is missing.  `own` is what the schema declares of the column.
plain_column <- function(values, name, own = NULL) {
  refuse_class(values, name, own)
  withheld(name, {
    if (inherits(values, "integer64")) {
      structure(unclass(values), class = "dp_whole")
    } else if (is.factor(values)) {
      as.character(values)
    } else if (inherits(values, moments_of_time)) {
      format(values, if (inherits(values, "Date")) "%Y-%m-%d" else "%Y-%m-%dT%H:%M:%SZ", tz = "UTC")
    } else if (inherits(values, "haven_labelled")) {
      labelled_values(values, setdiff(unlist(own[c("categories", "positive", "negative")]), own$other))
    } else {
      stripped(values)
    }
  })
}

refuse_class <- function(values, name, own) {
  told <- function(what, remedy) {
    refuse(sprintf("data must not have %s in the column %s: %s", what, sQuote(name, FALSE), remedy))
  }
  if (is.data.frame(values) || length(dim(values)) > 1) {
    told("a matrix", "make a column of each of its columns")
  }
  if (inherits(values, c(moments_of_time, "difftime"))) {
    if (inherits(values, "difftime") || identical(own$kind, "continuous")) {
      told("dates, times or durations", paste("make numbers of them before the fit, as.numeric(date - as.Date(\"2020-01-01\"))",
        "say, and declare their bounds; or declare a column of dates categorical"))
    }
    return(invisible())
  }
  if (inherits(values, c("factor", "integer64"))) {
    return(invisible())
  }
  if (isS4(values) || !(is.numeric(unclass(values)) || is.character(values) || is.logical(values))) {
    told(paste("values of type", sQuote(typeof(values), FALSE)), "make numbers or texts of them before the fit")
  }
  foreign <- setdiff(if (is.object(values)) class(values), c(plain_classes, "haven_labelled_spss"))
  if (length(foreign) > 0) {
    told(paste("values of class", sQuote(foreign[1], FALSE)), "make plain numbers or texts of them before the fit")
  }
}

stripped <- function(values) {
  attributes(values) <- NULL
  values
}

# Values of SPSS, Stata or SAS as haven reads them: the user's missing values are missing.  They are codes, or their
# labels where the schema declares the labels.
labelled_values <- function(values, categories) {
  labels <- attr(values, "labels", exact = TRUE)
  range <- attr(values, "na_range", exact = TRUE)
  found <- stripped(values)
  found[found %in% attr(values, "na_values", exact = TRUE)] <- NA
  if (!is.null(range)) {
    found[!is.na(found) & found >= range[1] & found <= range[2]] <- NA
  }
  if (length(labels) == 0 || length(categories) == 0 || !all(categories %in% names(labels))) {
    return(found)
  }
  place <- match(found, labels)
  ifelse(is.na(place), as.character(found), names(labels)[place])
}

kept <- function(values, rows) if (is.null(rows)) values else structure(values[rows], class = oldClass(values))

# The same as what goes to Python: bytes of numbers, or texts.
raw_column <- function(values, name, own = NULL, rows = NULL) sent(kept(plain_column(values, name, own), rows))

sent <- function(values) {
  if (inherits(values, "dp_whole")) {
    return(values)
  }
  if (is.numeric(values)) {
    return(structure(as.double(values), class = "dp_numbers"))
  }
  texts <- spelled(values)
  texts[!validEnc(texts)] <- NA
  I(enc2utf8(texts))
}

# An error of another package could quote a record, and its call could hold one.
withheld <- function(name, action) {
  found <- tryCatch(suppressWarnings(action), error = function(error) NULL)
  if (is.null(found)) {
    refuse(sprintf("data must have a column %s that can be read: make plain numbers or texts of it before the fit",
      sQuote(name, FALSE)))
  }
  found
}

column_names <- function(data) {
  named <- names(data)
  if (anyDuplicated(named)) {
    refuse(sprintf("data must have distinct names of columns, and two are called %s",
      sQuote(named[anyDuplicated(named)], FALSE)))
  }
  named
}

raw_columns <- function(data, declared = NULL, columns = column_names(data), rows = NULL) {
  structure(lapply(columns, function(name) raw_column(data[[name]], name, declared[[name]], rows)), names = columns)
}

# Functions of a condition: each acts on one record.
of_one_record <- c("(", "!", "&", "|", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "^", "%%", "%/%", "%in%",
  "is.na", "abs", "sqrt", "log", "log2", "log10", "log1p", "exp", "floor", "ceiling", "nchar", "tolower", "toupper")

# Which records a condition keeps.  Whether one is kept must depend on itself alone: otherwise one more person would
# change which others are there.
kept_records <- function(condition, data, env) {
  condition <- rowwise(condition, column_names(data), env)
  used <- all.vars(condition)
  if (length(used) == 0) {
    refuse("subset must be a condition on columns of data, such as subset = age >= 18")
  }
  values <- lapply(structure(used, names = used), function(name) {
    if (is.ordered(data[[name]])) data[[name]] else for_condition(plain_column(data[[name]], name))
  })
  found <- withheld("subset", eval(condition, values, baseenv()))
  if (!is.logical(found) || length(found) != nrow(data)) {
    refuse("subset must be a condition on columns of data, such as subset = age >= 18")
  }
  found & !is.na(found)
}

rowwise <- function(part, columns, env) {
  said <- paste("subset must be a condition that each record meets by itself, of columns, constants, comparisons and",
    "arithmetic:")
  if (is.symbol(part)) {
    name <- as.character(part)
    return(if (name %in% columns) part else constant(name, env, said))
  }
  if (!is.call(part)) {
    if (!is.atomic(part) || length(part) != 1) {
      refuse(paste(said, "a vector of rows depends on all records"))
    }
    return(part)
  }
  name <- if (is.symbol(part[[1]])) as.character(part[[1]]) else ""
  if (!name %in% of_one_record) {
    refuse(sprintf("%s %s is none of these", said, if (name == "") "a call" else sQuote(paste0(name, "()"), FALSE)))
  }
  if (name == "%in%") {
    if (any(all.vars(part[[3]]) %in% columns)) {
      refuse(paste(said, "what stands on the right of %in% must be constants"))
    }
    set <- tryCatch(eval(part[[3]], env), error = function(error) refuse(paste(said, "the right of %in% is not found")))
    return(call("%in%", rowwise(part[[2]], columns, env), as.vector(set)))
  }
  part[-1] <- lapply(as.list(part)[-1], rowwise, columns = columns, env = env)
  part
}

constant <- function(name, env, said) {
  value <- if (name %in% c("T", "F")) name == "T" else get0(name, envir = env, inherits = TRUE)
  if (!is.atomic(value) || length(value) != 1 || is.object(value)) {
    refuse(sprintf("%s %s is neither a column nor one number, text or truth value", said, sQuote(name, FALSE)))
  }
  value
}

for_condition <- function(values) if (inherits(values, "dp_whole")) as_double(values) else values

# Doubles of the 64-bit whole numbers whose bits a vector holds, with or without the package bit64.
as_double <- function(values) {
  halves <- readBin(writeBin(as.double(unclass(values)), raw(), endian = "little"), "integer", 2 * length(values),
    endian = "little")
  low <- halves[c(TRUE, FALSE)]
  high <- halves[c(FALSE, TRUE)]
  # The integer without a sign bit is R's NA, and as the higher half that of bit64.
  low <- ifelse(is.na(low), 2^31, ifelse(low < 0, low + 2^32, low))
  as.double(high) * 2^32 + low
}

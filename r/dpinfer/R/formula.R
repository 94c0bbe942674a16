# A formula of R as dpinfer reads it: the same grammar, with ** for ^, C() for factor(), lists for c().
formula_text <- function(formula) {
  if (!inherits(formula, "formula") || length(formula) != 3) {
    refuse("formula must have a response and terms, such as y ~ age + job")
  }
  paste(term_text(formula[[2]]), "~", term_text(formula[[3]]))
}

term_text <- function(part) {
  if (is.symbol(part)) {
    name <- as.character(part)
    return(if (name == "." || grepl("^[A-Za-z_][A-Za-z0-9_]*$", name)) name else paste0("`", name, "`"))
  }
  if (is.logical(part)) {
    return(if (part) "True" else "False")
  }
  if (is.numeric(part)) {
    return(format(part, digits = 15, scientific = FALSE, trim = TRUE))
  }
  if (is.character(part)) {
    return(encodeString(part, quote = "\""))
  }
  name <- if (is.symbol(part[[1]])) as.character(part[[1]]) else ""
  given <- vapply(as.list(part)[-1], term_text, "")
  if (name %in% c("+", "-", "*", "/", "^", ":")) {
    name <- if (name == "^") "**" else name
    return(if (length(given) == 1) paste0(name, given) else paste0(given[1], " ", name, " ", given[2]))
  }
  if (name == "(") {
    return(paste0("(", given, ")"))
  }
  if (name == "c") {
    return(paste0("[", paste(given, collapse = ", "), "]"))
  }
  if (name == "" || grepl("[^A-Za-z0-9_.]", name)) {
    refuse(sprintf("formula must not have %s: make a column of it before the fit, and declare it in the schema",
      if (name == "") "such a call" else sQuote(name, FALSE)))
  }
  names_of <- names(as.list(part)[-1])
  if (!is.null(names_of)) {
    given <- ifelse(names_of == "", given, paste0(names_of, "=", given))
  }
  name <- if (name %in% c("factor", "as.factor")) "C" else name
  paste0(name, "(", paste(given, collapse = ", "), ")")
}

# The columns of the table that a formula names, or all that the schema has where it says "all others".
columns_of <- function(formula, data, schema) {
  named <- all.vars(formula)
  if ("." %in% named) {
    if (!inherits(schema, "dp_schema")) {
      return(names(data))
    }
    kept <- vapply(schema$columns, function(own) own$kind != "ignore", NA)
    named <- union(setdiff(named, "."), names(schema$columns)[kept])
  }
  absent <- setdiff(named, names(data))
  if (length(absent) > 0) {
    refuse(sprintf("data must have the column %s, which the formula uses", sQuote(absent[1], FALSE)))
  }
  named
}

# A column as values that are read one by one: numbers, or texts with NA for what is missing.
raw_column <- function(values) {
  if (is.factor(values)) {
    values <- as.character(values)
  } else if (inherits(values, c("Date", "POSIXt"))) {
    values <- format(values, if (inherits(values, "Date")) "%Y-%m-%d" else "%Y-%m-%dT%H:%M:%SZ", tz = "UTC")
  }
  if (is.numeric(values)) {
    return(structure(as.double(values), class = "dp_numbers"))
  }
  I(unname(spelled(values)))
}

family_name <- function(family) {
  if (is.function(family)) {
    family <- family()
  }
  if (is.character(family) && length(family) == 1) {
    return(family)
  }
  if (!inherits(family, "family")) {
    refuse("family must be a family such as gaussian() or binomial(), or its name")
  }
  known <- c("gaussian identity" = "gaussian", "binomial logit" = "binomial", "binomial probit" = "probit",
    "poisson log" = "poisson")
  found <- known[paste(family$family, family$link)]
  if (is.na(found)) {
    refuse(sprintf("family must be gaussian(), binomial(), binomial(\"probit\"), poisson(), \"multinomial\" or \"negativebinomial\", got %s with link %s",
      family$family, family$link))
  }
  unname(found)
}

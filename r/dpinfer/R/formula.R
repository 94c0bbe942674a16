# A formula of R as dpinfer reads it: the same grammar, with ** for ^, C() for factor(), lists for c().  `columns` are
# those of the table: T and F are truth values where no column is called so.
formula_text <- function(formula, columns = character()) {
  if (!inherits(formula, "formula") || length(formula) != 3) {
    refuse("formula must have a response and terms, such as y ~ age + job")
  }
  paste(term_text(formula[[2]], columns), "~", term_text(formula[[3]], columns))
}

term_text <- function(part, columns = character()) {
  if (is.symbol(part)) {
    name <- as.character(part)
    if (name %in% c("T", "F") && !name %in% columns) {
      return(if (name == "T") "True" else "False")
    }
    return(if (name == "." || grepl("^[A-Za-z_][A-Za-z0-9_]*$", name)) name else paste0("`", name, "`"))
  }
  if (!is.call(part)) {
    return(constant_text(part))
  }
  name <- called(part)
  inner <- as.list(part)[-1]
  if (name %in% c("relevel", "ordered", "cbind", "Surv")) {
    return(special_text(name, inner, columns))
  }
  if (name == "(" && is.call(inner[[1]]) && called(inner[[1]]) %in% c("|", "||")) {
    sides <- vapply(as.list(inner[[1]])[-1], term_text, "", columns = columns)
    return(paste0("(", sides[1], " ", called(inner[[1]]), " ", sides[2], ")"))
  }
  if (name %in% c("|", "||")) {
    refuse("formula must have effects of groups in parentheses: y ~ x + (1 | site)")
  }
  given <- vapply(inner, term_text, "", columns = columns)
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
  names_of <- names(inner)
  if (!is.null(names_of)) {
    given <- ifelse(names_of == "", given, paste0(names_of, "=", given))
  }
  name <- if (name %in% c("factor", "as.factor")) "C" else name
  paste0(name, "(", paste(given, collapse = ", "), ")")
}

# The name of a call's function, without its package.
called <- function(part) {
  first <- part[[1]]
  if (is.call(first) && identical(first[[1]], as.name("::"))) {
    first <- first[[3]]
  }
  if (is.symbol(first)) as.character(first) else ""
}

constant_text <- function(part) {
  if (!is.atomic(part) || length(part) != 1) {
    refuse("formula must be written out, with columns, functions and single constants")
  }
  if (is.logical(part)) {
    return(if (isTRUE(part)) "True" else "False")
  }
  if (is.numeric(part)) {
    text <- format(part, digits = 15, scientific = FALSE, trim = TRUE)
    return(if (as.numeric(text) == part) text else sprintf("%.17g", part))
  }
  encodeString(part, quote = "\"")
}

special_text <- function(name, inner, columns) {
  if (name == "relevel") {
    level <- if (length(inner) == 2) inner[[2]]
    if (!is.character(level)) {
      refuse("formula must have relevel() of a column and a level, relevel(job, \"cook\")")
    }
    return(sprintf("C(%s, base=%s)", term_text(inner[[1]], columns), constant_text(level)))
  }
  refuse(switch(name,
    ordered = "formula must do without ordered(): a column of categories has treatment contrasts, in the order of the schema",
    cbind = "formula must have a response of one column: a row for each trial, declared by dp_binary()",
    "formula must have a response of numbers or categories: survival times are not supported"
  ))
}

# The columns of the table that a formula names, or all that the schema has where it says "all others".
columns_of <- function(formula, declared, present) {
  named <- setdiff(all.vars(formula), setdiff(c("T", "F"), present))
  if ("." %in% named) {
    kept <- vapply(declared, function(own) own$kind != "ignore", NA)
    named <- union(setdiff(named, "."), names(declared)[kept])
  }
  named
}

# The name of a column that an argument gives as lm() or svydesign() would take it: weights = w, "w" or ~ w.  `part` is
# what the caller wrote, and `value` is evaluated only where this is no column.
column_argument <- function(part, value, argument, columns) {
  if (is.symbol(part) && as.character(part) %in% columns) {
    return(as.character(part))
  }
  found <- tryCatch(value, error = function(error) {
    refuse(sprintf("%s must name a column of data, which the schema declares: %s = w, \"w\" or ~ w", argument, argument))
  })
  if (is.null(found)) {
    return(NULL)
  }
  if (inherits(found, "formula") && length(found) == 2 && is.symbol(found[[2]])) {
    found <- as.character(found[[2]])
  }
  if (!is.character(found) || length(found) != 1 || is.na(found)) {
    refuse(sprintf(paste("%s must name one column of data, which the schema declares: %s = w, \"w\" or ~ w. What is",
      "computed beside the table has no public bounds"), argument, argument))
  }
  found
}

# The family's name; quasi families make no assumption of the variance, as the population's target makes none.
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
  found <- known[paste(sub("^quasi(binomial|poisson)$", "\\1", family$family), family$link)]
  if (is.na(found)) {
    refuse(sprintf(paste("family must be gaussian(), binomial(), binomial(\"probit\"), poisson(), quasibinomial(),",
      "quasipoisson(), \"multinomial\" or \"negativebinomial\", got %s with link %s"), family$family, family$link))
  }
  unname(found)
}

is_quasi <- function(family) {
  family <- if (is.function(family)) family() else family
  inherits(family, "family") && startsWith(family$family, "quasi")
}

#' A generalised linear model with differential privacy
#'
#' Fits a regression of a table in one private run, and says what follows from it: coefficients in the units of the
#' table, with intervals that count both what the records leave open and the privacy noise. It spends `epsilon` and
#' `delta` each time it is called. What is asked of the fit afterwards spends nothing.
#'
#' @param formula As for [glm()]: `pay ~ age * job + log(hours)`. Functions whose constants would come from the
#'   records are refused. `^` and `factor()` mean what they mean in R.
#' @param data A data frame, or the path of a CSV or Parquet file.
#' @param schema What is public about the columns: a [dp_schema()], or the path of a TOML file.
#' @param epsilon,delta The privacy budget of this fit.
#' @param family `gaussian()`, `binomial()`, `binomial("probit")`, `poisson()`, `"multinomial"` or `"negativebinomial"`.
#' @param weights Must be `NULL`: weighted records are not supported.
#' @param n_records The public number of records, about. `NULL` where nobody knows it in public: it is then
#'   released with noise, for a part of the budget.
#' @param unknown What else nobody knows: `"bounds"`, `"categories"`. It is released first, for a part of the budget.
#' @param ledger An account of [dp_ledger()] that the run is charged to.
#' @param path A folder that the release is written to before anything else is done with it.
#' @param prior_scale Standard deviation of the prior, for coefficients per standard deviation of their column.
#' @return An object of class `dp_glm`. There are methods for [print()], [summary()], [coef()], [confint()], [vcov()],
#'   [predict()], [plot()], [drop1()], [nobs()], [formula()], [tidy()] and `posterior::as_draws_df()`.
#' @details Residuals, fitted values and the likelihood belong to single records. They are not released, and
#'   [residuals()] says so.
#' @examples
#' if (dp_available()) {
#'   people <- data.frame(age = runif(5000, 18, 80))
#'   people$pay <- 5 + 0.4 * people$age + rnorm(5000, sd = 5)
#'   schema <- dp_schema(age = dp_continuous(17, 90), pay = dp_continuous(-20, 80))
#'   fit <- dp_glm(pay ~ age, people, schema, epsilon = 1, delta = 1e-6, n_records = 5000)
#'   summary(fit)
#' }
#' @export
dp_glm <- function(formula, data, schema, epsilon, delta, family = stats::gaussian(), weights = NULL,
                   n_records = NULL, unknown = NULL, ledger = NULL, path = NULL, prior_scale = NULL) {
  if (!is.null(weights)) {
    refuse(paste("weights must be NULL: a weight changes how much one record can change the release, and the",
      "guarantee is proved for records that count once"))
  }
  if (!inherits(schema, "dp_schema") && !(is.character(schema) && length(schema) == 1)) {
    refuse("schema must be a dp_schema(), or the path of a TOML file")
  }
  if (!is.null(ledger) && !inherits(ledger, "dp_ledger")) {
    refuse("ledger must be an account of dp_ledger()")
  }
  text <- formula_text(formula)
  told <- list(
    formula = text, family = family_name(family),
    schema = if (is.character(schema)) path.expand(schema) else unclass(schema),
    epsilon = check_number(epsilon, "epsilon"), delta = check_number(delta, "delta"),
    n_records = if (is.null(n_records)) NULL else check_number(n_records, "n_records"),
    unknown = as.list(union(as.character(unknown), if (is.null(n_records)) "n_records")),
    ledger = if (is.null(ledger)) NULL else unclass(ledger),
    path = if (is.null(path)) NULL else path.expand(path), prior_scale = prior_scale
  )
  if (is.data.frame(data)) {
    rows <- lapply(data[columns_of(formula, data, schema)], raw_column)
  } else if (is.character(data) && length(data) == 1) {
    rows <- path.expand(data)
  } else {
    refuse("data must be a data frame, or the path of a file")
  }
  made(do.call(ask, c(list("fit", data = rows), told)), formula)
}

made <- function(found, formula = NULL) {
  if (!is.null(formula)) {
    # That of the caller may hold the records, and would be written with the fit by saveRDS().
    environment(formula) <- globalenv()
  }
  table <- ask("coefficients", fit = found$fit, level = 0.95, exp = FALSE)
  names(table$mean) <- table$name
  dimnames(found$cov) <- list(found$names, found$names)
  structure(
    list(
      coefficients = table$mean[found$names], cov = found$cov, table = as_table(table), formula = formula,
      text = found$text, family = found$family, n_records = found$n_records, method = found$method,
      guarantee = found$guarantee, epsilon = found$epsilon, delta = found$delta,
      terms = found$terms, classes = found$classes, python = found$fit
    ),
    class = "dp_glm"
  )
}

as_table <- function(found) {
  data.frame(
    mean = as.vector(found$mean), sd = as.vector(found$sd), low = as.vector(found$low), high = as.vector(found$high),
    privacy = as.vector(found$privacy), prior = as.vector(found$prior), remark = found$remark,
    row.names = found$name, stringsAsFactors = FALSE
  )
}

table_at <- function(object, level, exp = FALSE) {
  level <- check_level(level)
  if (level == 0.95 && !exp) {
    return(object$table)
  }
  as_table(ask("coefficients", fit = handle(object), level = level, exp = exp))
}

check_level <- function(level) {
  if (!is.numeric(level) || length(level) != 1 || is.na(level) || level <= 0 || level >= 1) {
    refuse("level must be one number between 0 and 1")
  }
  level
}

#' A generalised linear model with differential privacy
#'
#' Fits a regression of a table in one private run, and says what follows from it: coefficients in the units of the
#' table, with intervals that count both what the records leave open and the privacy noise. It spends `epsilon` and
#' `delta` each time it is called. What is asked of the fit afterwards spends nothing.
#'
#' @param formula As for [glm()]: `pay ~ age * job + log(hours)`. Functions whose constants would come from the
#'   records are refused. `^`, `factor()`, `relevel()` and `poly(raw = TRUE)` mean what they mean in R. `(1 | site)`,
#'   `(1 + x | site)` and `(1 + x || site)` are effects of groups as in lme4, `s(age)` is a curve as in mgcv: their
#'   scales are learned.
#' @param data A data frame, tibble or data.table, or the path of a CSV or Parquet file. In a `do.call()` give its name,
#'   `quote(people)`: the call, which R keeps for `traceback()`, would hold the records.
#' @param schema What is public about the columns: a [dp_schema()], or the path of a TOML file.
#' @param epsilon,delta The privacy budget of this fit.
#' @param family `gaussian()`, `binomial()`, `binomial("probit")`, `poisson()`, `"multinomial"` or `"negativebinomial"`.
#'   `quasibinomial()` and `quasipoisson()` ask for the population's coefficients, with robust intervals.
#' @param weights A column of survey weights, `weights = w`, `"w"` or `~ w`: coefficients are those of the weighted
#'   population, as of `survey::svyglm()`. The schema declares its bounds, and its mean and sd.
#' @param n_records The public number of records, about; of units with `unit`, and of those that `subset` keeps. `NULL`
#'   where nobody knows it in public: it is then released with noise, for a part of the budget.
#' @param unknown What else nobody knows: `"bounds"`, `"categories"`. It is released first, for a part of the budget.
#' @param ledger An account of [dp_ledger()] that the run is charged to.
#' @param path A folder that the release is written to before anything else is done with it.
#' @param prior_scale Standard deviation of the prior, for coefficients per standard deviation of their column.
#' @param subset A condition that each record meets by itself: `subset = age >= 18 & job != "cook"`. It must be public,
#'   and what it compares with must not come from the records, as `mean(age)` would.
#' @param na.action `na.omit` (a record without a value that the formula uses is dropped) or `na.fail` (it stops the run:
#'   a refusal that says something about the records). By default as the schema says.
#' @param unit What is protected, if it is more than a row: [dp_unit()]. With `(1 | person)` of that column the model has
#'   effects of persons.
#' @param clusters A column of clusters, such as villages, whose rows may depend on each other. Rows are protected, and
#'   intervals allow for the dependence.
#' @param strata A column of categories: the survey sampled each stratum separately, as `svydesign(strata = )`.
#' @param target `"population"`: least squares or maximum likelihood on the whole population, with robust intervals;
#'   `"model"`: intervals that hold where the model is true; `"auto"`: the population's where it costs little.
#' @param prior `"horseshoe"`: most coefficients are near zero, and a few may be large.
#' @param names Names of coefficients as R has them, `(Intercept)` and `jobnurse`, or as Python has them, `intercept` and
#'   `job[T.nurse]`.
#' @return An object of class `dp_glm`. There are methods for [print()], [summary()], [coef()], [confint()], [vcov()],
#'   [predict()], [plot()], [anova()], [drop1()], [update()], [nobs()], [formula()], [tidy()], [glance()], [augment()],
#'   [fixef()], [ranef()], [VarCorr()] and `posterior::as_draws_df()`.
#' @details Residuals, fitted values and the likelihood belong to single records. They are not released, and
#'   [residuals()] says so.
#'
#'   Columns have treatment contrasts, whatever `options("contrasts")` says, those of ordered factors too; [summary()]
#'   says so. Values that haven's labels call missing are missing. Columns of class `integer64` are read with or without
#'   the package bit64. A date that is declared a number is refused, before anything is spent.
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
                   n_records = NULL, unknown = NULL, ledger = NULL, path = NULL, prior_scale = NULL, subset = NULL,
                   na.action = NULL, unit = NULL, clusters = NULL, strata = NULL,
                   target = c("auto", "population", "model"), prior = NULL, names = c("R", "python")) {
  call <- match.call()
  target <- one_of(target, c("auto", "population", "model"), "target")
  names <- one_of(names, c("R", "python"), "names")
  if (!is.null(ledger) && !inherits(ledger, "dp_ledger")) {
    refuse("ledger must be an account of dp_ledger()")
  }
  if (!is.null(unit) && !inherits(unit, "dp_unit")) {
    refuse("unit must be a dp_unit(): dp_unit(\"household\", max_rows = 5)")
  }
  schema <- with_na_action(checked_schema(schema), na.action)
  declared <- declared_columns(schema)
  present <- if (is.data.frame(data)) column_names(data) else names(declared)
  weights <- column_argument(substitute(weights), weights, "weights", present)
  clusters <- column_argument(substitute(clusters), clusters, "clusters", present)
  strata <- column_argument(substitute(strata), strata, "strata", present)
  text <- formula_text(formula, present)
  used <- unique(c(columns_of(formula, declared, present), weights, clusters, strata, unit$ids))
  rows <- rows_to_send(data, used, declared, substitute(subset), parent.frame())
  found <- ask("fit",
    data = rows, formula = text, family = family_name(family),
    schema = if (is.character(schema)) schema else unclass(schema),
    epsilon = check_number(epsilon, "epsilon"), delta = check_number(delta, "delta"),
    n_records = if (is.null(n_records)) NULL else check_number(n_records, "n_records"),
    unknown = as.list(union(as.character(unknown), if (is.null(n_records)) "n_records")),
    ledger = if (is.null(ledger)) NULL else unclass(ledger),
    path = if (is.null(path)) NULL else path.expand(path),
    prior_scale = if (is.null(prior_scale)) NULL else check_number(prior_scale, "prior_scale"),
    weights = weights, clusters = clusters, strata = strata,
    unit = if (is.null(unit)) NULL else unclass(unit),
    target = if (target == "auto" && is_quasi(family)) "population" else target, prior = prior
  )
  made(found, names, formula, call = without_records(call), notes = contrast_notes(formula, data, declared, present))
}

#' What is protected, where it is more than one row
#'
#' Privacy then protects a unit, a household or a person, with all of its rows, and intervals allow for the dependence of
#' its rows.
#'
#' @param ids The name of the column that says whose each row is. The schema declares it, `dp_ignored()` will do.
#' @param max_rows The largest number of rows of a unit that count in full, from public knowledge. The noise grows in
#'   proportion.
#' @param mean_rows The mean number of rows of a unit, from public knowledge; by default `max_rows`.
#' @return For `unit` of [dp_glm()].
#' @examples
#' dp_unit("household", max_rows = 6, mean_rows = 2.4)
#' @export
dp_unit <- function(ids, max_rows, mean_rows = NULL) {
  if (inherits(ids, "formula") && length(ids) == 2 && is.symbol(ids[[2]])) {
    ids <- as.character(ids[[2]])
  }
  if (!is.character(ids) || length(ids) != 1 || is.na(ids)) {
    refuse("ids must be the name of a column: dp_unit(\"household\", max_rows = 5)")
  }
  if (missing(max_rows)) {
    refuse("max_rows must be given: the largest number of rows of a unit, from public knowledge")
  }
  structure(
    list(ids = ids, max_rows = check_number(max_rows, "max_rows"),
      mean_rows = if (is.null(mean_rows)) NULL else check_number(mean_rows, "mean_rows")),
    class = "dp_unit"
  )
}

checked_schema <- function(schema) {
  if (is.character(schema) && length(schema) == 1) {
    return(path.expand(schema))
  }
  if (!inherits(schema, "dp_schema")) {
    refuse("schema must be a dp_schema(), or the path of a TOML file")
  }
  schema
}

# What the schema declares of each column.
declared_columns <- function(schema) {
  if (is.character(schema)) ask("declared", path = schema) else schema$columns
}

with_na_action <- function(schema, action) {
  if (is.null(action)) {
    return(schema)
  }
  known <- c("na.omit", "na.exclude", "na.fail")
  chosen <- if (is.character(action) && length(action) == 1) action else {
    known[vapply(known, function(name) identical(action, getExportedValue("stats", name)), NA)]
  }
  if (length(chosen) != 1 || !chosen %in% known) {
    refuse("na.action must be na.omit or na.fail: a record without a value has no place in the sums")
  }
  if (is.character(schema)) {
    refuse("na.action must be NULL with the path of a schema, which says itself what is done")
  }
  schema$table$missing <- if (chosen == "na.fail") "refuse" else "drop"
  schema
}

rows_to_send <- function(data, used, declared, condition, env) {
  if (is.data.frame(data)) {
    absent <- setdiff(used, names(data))
    if (length(absent) > 0) {
      refuse(sprintf("data must have the column %s, which the fit uses", sQuote(absent[1], FALSE)))
    }
    rows <- if (is.null(condition)) NULL else kept_records(condition, data, env)
    return(raw_columns(data, declared, used, rows))
  }
  if (inherits(data, c("survey.design", "svyrep.design"))) {
    refuse("data must be a data frame: give a survey's columns by name, as weights, clusters and strata")
  }
  if (!is.character(data) || length(data) != 1) {
    refuse("data must be a data frame, or the path of a file")
  }
  if (!is.null(condition)) {
    refuse("subset must be NULL with a file: read it, or keep those records in a file of their own")
  }
  path.expand(data)
}

# What summary() says of contrasts that glm() would have otherwise.
contrast_notes <- function(formula, data, declared, present) {
  on_right <- setdiff(intersect(columns_of(formula, declared, present), names(declared)), all.vars(formula[[2]]))
  categories <- Filter(function(name) declared[[name]]$kind %in% c("categorical", "binary", "target"), on_right)
  usual <- unname(getOption("contrasts")[1])
  differs <- Filter(function(name) {
    own <- if (is.data.frame(data)) data[[name]]
    is.ordered(own) || !is.null(attr(own, "contrasts")) || !identical(usual, "contr.treatment")
  }, categories)
  vapply(differs, function(name) {
    own <- if (is.data.frame(data)) data[[name]]
    instead <- if (is.ordered(own) && is.null(attr(own, "contrasts"))) "polynomial" else "other"
    base <- c(declared[[name]]$reference, unlist(declared[[name]]$categories), "its first category")[1]
    sprintf("%s has treatment contrasts with %s, where glm() would have %s ones", name, base, instead)
  }, "", USE.NAMES = FALSE)
}

# A call whose arguments are names and constants: what do.call() put in their place could be the records, and the
# environment of a formula could hold them.
without_records <- function(call) {
  plain <- function(part) {
    if (is.call(part)) {
      return(all(vapply(seq_along(part), function(k) identical(part[[k]], quote(expr = )) || plain(part[[k]]), NA)))
    }
    is.null(part) || is.symbol(part) || (is.atomic(part) && length(part) == 1)
  }
  for (name in setdiff(names(call), "")) {
    if (!plain(call[[name]])) call[[name]] <- as.name(name)
    if (is.call(call[[name]])) attributes(call[[name]]) <- NULL
  }
  call[[1]] <- quote(dp_glm)
  call
}

made <- function(found, names = "R", formula = NULL, call = NULL, notes = character()) {
  if (!is.null(formula)) {
    # That of the caller may hold the records, and would be written with the fit by saveRDS().
    environment(formula) <- globalenv()
  }
  # From Python's names to those that are shown.
  words <- if (names == "R") unlist(found$words) else structure(names(found$words), names = names(found$words))
  labels <- if (names == "R") found$labels else found$terms
  python <- found$fit
  table <- as_table(ask("coefficients", fit = python, level = 0.95, exp = FALSE), words)
  shown <- shown_name(found$names, words)
  dimnames(found$cov) <- list(shown, shown)
  shown <- in_order(shown, words)
  structure(
    list(
      coefficients = structure(table[shown, "mean"], names = shown), cov = found$cov[shown, shown, drop = FALSE],
      table = table, formula = formula, call = call, text = if (is.null(formula)) found$text else formula_shown(formula),
      family = found$family, n_records = found$n_records, nobs = found$nobs, records = found$records, method = found$method, target = found$target,
      guarantee = found$guarantee, epsilon = found$epsilon, delta = found$delta, labels = labels, effects = found$effects,
      labels_python = found$terms, classes = found$classes, columns = found$columns, words = words, notes = notes,
      python = python
    ),
    class = "dp_glm"
  )
}

formula_shown <- function(formula) paste(trimws(deparse(formula, width.cutoff = 500)), collapse = " ")

shown_name <- function(names, words) unname(ifelse(names %in% names(words), words[names], names))

in_order <- function(names, words) c(intersect(words, names), setdiff(names, words))

as_table <- function(found, words = NULL) {
  table <- data.frame(
    mean = as.vector(found$mean), sd = as.vector(found$sd), low = as.vector(found$low), high = as.vector(found$high),
    privacy = as.vector(found$privacy), prior = as.vector(found$prior), remark = found$remark,
    row.names = shown_name(found$name, words), stringsAsFactors = FALSE
  )
  table[in_order(row.names(table), words), ]
}

table_at <- function(object, level, exp = FALSE) {
  level <- check_level(level)
  if (level == 0.95 && !exp) {
    return(object$table)
  }
  as_table(ask("coefficients", fit = handle(object), level = level, exp = exp), object$words)
}

check_level <- function(level) {
  if (!is.numeric(level) || length(level) != 1 || is.na(level) || level <= 0 || level >= 1) {
    refuse("level must be one number between 0 and 1")
  }
  level
}

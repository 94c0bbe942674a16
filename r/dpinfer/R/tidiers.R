#' A private regression as data frames
#'
#' The tables that broom and broom.mixed have of other models, as tibbles where the package tibble is installed.
#'
#' @param x A fit of [dp_glm()].
#' @param conf.int Whether to give intervals.
#' @param conf.level Of the equal-tailed intervals.
#' @param exponentiate Odds or rate ratios instead of coefficients.
#' @param effects `"fixed"` for coefficients, `"ran_pars"` for standard deviations and correlations of effects,
#'   `"ran_vals"` for the effects of groups.
#' @param data Must be `NULL`: the records are not kept.
#' @param newdata A data frame of the caller's own points.
#' @param interval `"confidence"` for the mean, `"prediction"` for a new response.
#' @param ... Not used.
#' @return `tidy()`: a row for each coefficient, with `privacy` and `prior`, the shares of the variance that are due to
#'   the noise and to the prior alone. `glance()`: one row, without likelihoods, which are not released; `n_records`
#'   is the declared number, `nobs` the noisy one of the records used. `augment()`:
#'   `newdata` with `.fitted`, `.se.fit`, and `.lower` and `.upper`.
#' @name dp_glm_tidiers
NULL

#' @rdname dp_glm_tidiers
#' @method tidy dp_glm
#' @export
tidy.dp_glm <- function(x, conf.int = FALSE, conf.level = 0.95, exponentiate = FALSE, effects = "fixed", ...) {
  if (!is.character(effects) || length(effects) == 0 || !all(effects %in% c("fixed", "ran_pars", "ran_vals"))) {
    refuse("effects must be some of \"fixed\", \"ran_pars\" and \"ran_vals\"")
  }
  rows <- lapply(effects, function(kind) {
    switch(kind, fixed = tidy_fixed(x, conf.level, exponentiate), ran_pars = tidy_scales(x, conf.level),
      ran_vals = tidy_effects(x, conf.level))
  })
  result <- do.call(rbind, rows)
  if (identical(effects, "fixed")) {
    result[c("effect", "group", "level")] <- NULL
  } else if (!"ran_vals" %in% effects) {
    result$level <- NULL
  }
  if (!conf.int) {
    result[c("conf.low", "conf.high")] <- NULL
  }
  as_tibble(result)
}

tidied <- function(table, effect, group, level, term) {
  data.frame(effect = effect, group = group, level = level, term = term, estimate = table$mean, std.error = table$sd,
    privacy = table$privacy, prior = table$prior, conf.low = table$low, conf.high = table$high, stringsAsFactors = FALSE)
}

tidy_fixed <- function(x, level, exp) {
  table <- table_at(x, level, exp)[names(x$coefficients), ]
  tidied(table, "fixed", NA_character_, NA_character_, row.names(table))
}

tidy_scales <- function(x, level) {
  found <- scales_of(x, level)
  term <- ifelse(found$var2 == "", paste0("sd__", ifelse(found$var1 == "", "Observation", found$var1)),
    paste0("cor__", found$var1, ".", found$var2))
  tidied(found$table, "ran_pars", found$grp, NA_character_, term)
}

tidy_effects <- function(x, level) {
  do.call(rbind, lapply(effects_of(x, level), function(own) {
    tidied(own$table, "ran_vals", own$group, rep(own$labels, length(own$kinds)), rep(own$kinds, each = length(own$labels)))
  }))
}

#' @rdname dp_glm_tidiers
#' @method glance dp_glm
#' @export
glance.dp_glm <- function(x, ...) {
  found <- data.frame(
    sigma = x$table["sigma", "mean"], df = length(x$coefficients), epsilon = x$epsilon, delta = x$delta,
    method = x$method, target = x$target, n_records = x$n_records, nobs = x$nobs, stringsAsFactors = FALSE
  )
  as_tibble(found[!(names(found) == "sigma" & is.na(found$sigma))])
}

#' @rdname dp_glm_tidiers
#' @method augment dp_glm
#' @export
augment.dp_glm <- function(x, data = NULL, newdata = NULL, interval = c("none", "confidence", "prediction"),
                           conf.level = 0.95, ...) {
  if (!is.null(data) || is.null(newdata)) {
    refuse("newdata must be a data frame of your own points, and data NULL: the records are not kept")
  }
  interval <- one_of(interval, c("none", "confidence", "prediction"), "interval")
  found <- predict(x, newdata, se.fit = TRUE, interval = interval, level = conf.level)
  result <- as.data.frame(newdata)
  if (interval == "none") {
    result$.fitted <- unname(found$fit)
  } else {
    result[c(".fitted", ".lower", ".upper")] <- list(unname(found$fit[, 1]), unname(found$fit[, 2]), unname(found$fit[, 3]))
  }
  result$.se.fit <- unname(found$se.fit)
  as_tibble(result)
}

as_tibble <- function(table) {
  row.names(table) <- NULL
  if (requireNamespace("tibble", quietly = TRUE)) tibble::as_tibble(table) else table
}

#' @rdname dp_glm_methods
#' @exportS3Method posterior::as_draws_df
as_draws_df.dp_glm <- function(x, n = 4000, ...) {
  found <- ask("draws", fit = handle(x), n = check_number(n, "n"))
  names <- shown_name(found$names, x$words)
  drawn <- structure(found$draws, dimnames = list(NULL, names))[, in_order(names, x$words)]
  posterior::as_draws_df(posterior::as_draws_matrix(drawn))
}

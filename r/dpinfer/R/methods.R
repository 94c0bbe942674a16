#' What a private regression says
#'
#' None of these reads a record, and none spends anything: all follow from the release.
#'
#' @param object,x A fit of [dp_glm()].
#' @param parm Names or places of coefficients, by default all.
#' @param level,conf.level Of the equal-tailed intervals.
#' @param exp,exponentiate Odds or rate ratios instead of coefficients.
#' @param newdata A data frame of the caller's own points.
#' @param type `"response"`, a mean, a probability or a rate, or `"link"`. Unlike in [predict.glm()] the response is
#'   the default.
#' @param se.fit Also return posterior standard deviations.
#' @param interval `"confidence"` for the mean, `"prediction"` for a new response.
#' @param scope Terms to drop, by default each that no interaction holds.
#' @param conf.int Whether to give intervals.
#' @param digits Significant digits.
#' @param n Number of independent draws.
#' @param ... Not used.
#' @return `summary()`: a table with the mean, the standard deviation, the interval, and the shares of the variance
#'   that are due to the privacy noise and to the prior alone. `confint()`, `vcov()`, `predict()` and `drop1()`: as for
#'   [lm()] and [glm()]; `drop1()` has a Wald test and a Bayes factor for each term.
#' @name dp_glm_methods
NULL

#' @rdname dp_glm_methods
#' @export
print.dp_glm <- function(x, digits = 4, ...) {
  cat(x$text, "  (", x$family, ", about ", format(x$n_records), " records)\n\n", sep = "")
  print(signif(x$coefficients, digits))
  cat("\n", x$guarantee, "\n", sep = "")
  invisible(x)
}

#' @rdname dp_glm_methods
#' @export
summary.dp_glm <- function(object, level = 0.95, exp = FALSE, ...) {
  structure(
    list(
      table = table_at(object, level, exp), level = level, exp = exp, text = object$text, family = object$family,
      n_records = object$n_records, method = object$method, guarantee = object$guarantee
    ),
    class = "summary.dp_glm"
  )
}

#' @export
print.summary.dp_glm <- function(x, digits = 4, ...) {
  cat(x$text, "  (family ", x$family, ", about ", format(x$n_records), " records, method ", x$method, ")\n\n", sep = "")
  shown <- x$table
  for (name in c("mean", "sd", "low", "high")) shown[[name]] <- signif(shown[[name]], digits)
  for (name in c("privacy", "prior")) {
    shown[[name]] <- ifelse(is.na(shown[[name]]), "", sprintf("%.0f%%", 100 * shown[[name]]))
  }
  tail <- 50 * (1 - x$level)
  names(shown)[1:4] <- c(if (x$exp) c("ratio", "sd of log") else c("mean", "sd"), paste0(c(tail, 100 - tail), "%"))
  print(if (all(shown$remark == "")) shown[names(shown) != "remark"] else shown)
  cat("\nprivacy, prior: shares of the variance that are due to the noise, and to the prior alone\n\n")
  cat(x$guarantee, "\n", sep = "")
  invisible(x)
}

#' @export
coef.dp_glm <- function(object, ...) object$coefficients

#' @rdname dp_glm_methods
#' @export
confint.dp_glm <- function(object, parm, level = 0.95, ...) {
  table <- table_at(object, level)[names(object$coefficients), ]
  tail <- 50 * (1 - level)
  ends <- as.matrix(table[c("low", "high")])
  colnames(ends) <- paste(format(c(tail, 100 - tail), trim = TRUE, digits = 3), "%")
  if (missing(parm)) ends else ends[parm, , drop = FALSE]
}

#' @rdname dp_glm_methods
#' @export
vcov.dp_glm <- function(object, ...) object$cov

#' @export
nobs.dp_glm <- function(object, ...) object$n_records

#' @export
formula.dp_glm <- function(x, ...) if (is.null(x$formula)) x$text else x$formula

#' @export
family.dp_glm <- function(object, ...) {
  switch(object$family,
    gaussian = stats::gaussian(), binomial = stats::binomial(), probit = stats::binomial("probit"),
    poisson = stats::poisson(), object$family)
}

#' @export
residuals.dp_glm <- function(object, ...) {
  refuse("residuals are of single records, and are not released: predict() has means at points of your own")
}

#' @export
fitted.dp_glm <- function(object, ...) {
  refuse("fitted values are of single records, and are not released: predict() has means at points of your own")
}

#' @export
logLik.dp_glm <- function(object, ...) {
  refuse("the likelihood of the records is not released: drop1() compares models that are nested")
}

#' @rdname dp_glm_methods
#' @export
predict.dp_glm <- function(object, newdata, type = c("response", "link"), se.fit = FALSE,
                           interval = c("none", "confidence", "prediction"), level = 0.95, ...) {
  type <- match.arg(type)
  interval <- match.arg(interval)
  level <- check_level(level)
  if (missing(newdata) || !is.data.frame(newdata)) {
    refuse("newdata must be a data frame of your own points: the records are not kept")
  }
  points <- lapply(newdata, raw_column)
  draws <- ask("mean_draws", fit = handle(object), new_data = points)
  if (length(dim(draws)) == 3) {
    if (type == "link" || interval != "none" || se.fit) {
      refuse("type must be \"response\" with several classes, without intervals")
    }
    return(structure(apply(draws, c(2, 3), mean), dimnames = list(row.names(newdata), object$classes)))
  }
  if (type == "link") {
    draws[] <- switch(object$family, gaussian = draws, binomial = stats::qlogis(draws), probit = stats::qnorm(draws),
      log(draws))
  }
  mean <- structure(colMeans(draws), names = row.names(newdata))
  fit <- mean
  if (interval != "none") {
    if (interval == "prediction") {
      if (type == "link" || object$family %in% c("binomial", "probit")) {
        refuse("interval must be \"confidence\" for a link, or a response of two categories")
      }
      drawn <- ask("response_draws", fit = handle(object), new_data = points)
    } else {
      drawn <- draws
    }
    ends <- apply(drawn, 2, quantile, c((1 - level) / 2, (1 + level) / 2), na.rm = TRUE, names = FALSE)
    ends[, is.na(mean)] <- NA
    fit <- cbind(fit = mean, lwr = ends[1, ], upr = ends[2, ])
  }
  if (se.fit) list(fit = fit, se.fit = structure(apply(draws, 2, stats::sd), names = names(mean))) else fit
}

#' @rdname dp_glm_methods
#' @export
plot.dp_glm <- function(x, level = 0.95, ...) {
  ends <- confint(x, level = level)
  shown <- setdiff(rownames(ends), "intercept")
  ends <- ends[shown, , drop = FALSE]
  # The part of the spread that is not the noise's, as a thick line.
  share <- pmax(0, 1 - x$table[shown, "privacy"])
  place <- rev(seq_along(shown))
  old <- graphics::par(mar = c(4, max(4, 0.55 * max(nchar(shown))), 2, 1))
  on.exit(graphics::par(old))
  graphics::plot(range(ends, 0), range(place) + c(-0.5, 0.5), type = "n", yaxt = "n", ylab = "",
    xlab = paste0("coefficient, ", format(100 * level), "% interval"), main = x$text, ...)
  graphics::abline(v = 0, col = "grey70", lty = 2)
  graphics::segments(ends[, 1], place, ends[, 2], place, col = "#4477AA")
  middle <- x$coefficients[shown]
  inner <- sqrt(ifelse(is.na(share), 0, share))
  graphics::segments(middle - inner * (middle - ends[, 1]), place, middle + inner * (ends[, 2] - middle), place,
    lwd = 4, col = "#4477AA")
  graphics::points(middle, place, pch = 19, col = "white", cex = 0.6)
  graphics::axis(2, place, shown, las = 1, tick = FALSE)
  graphics::mtext("thick: without the privacy noise's share of the variance", cex = 0.8)
  invisible(x)
}

#' @rdname dp_glm_methods
#' @export
drop1.dp_glm <- function(object, scope, ...) {
  terms <- if (missing(scope)) marginal(object$terms) else as.character(scope)
  rows <- lapply(terms, function(term) as.data.frame(ask("compare", fit = handle(object), without = term)))
  found <- do.call(rbind, rows)
  table <- data.frame(
    Df = found$columns, Wald = found$wald, "Pr(>Chi)" = found$p_value, "log Bayes factor" = found$log_bayes_factor,
    row.names = terms, check.names = FALSE
  )
  structure(table, heading = paste0("Without each term: ", object$text, "\n"), class = c("anova", "data.frame"))
}

# Terms that are in no interaction, as drop1() of other models takes them.
marginal <- function(terms) {
  parts <- strsplit(terms, ":", fixed = TRUE)
  inner <- vapply(seq_along(parts), function(own) {
    any(vapply(parts[-own], function(other) length(other) > length(parts[[own]]) && all(parts[[own]] %in% other), NA))
  }, NA)
  terms[!inner]
}

#' @rdname dp_glm_methods
#' @method tidy dp_glm
#' @export
tidy.dp_glm <- function(x, conf.int = FALSE, conf.level = 0.95, exponentiate = FALSE, ...) {
  table <- table_at(x, conf.level, exponentiate)
  result <- data.frame(
    term = row.names(table), estimate = table$mean, std.error = table$sd, privacy = table$privacy,
    prior = table$prior, stringsAsFactors = FALSE
  )
  if (conf.int) {
    result$conf.low <- table$low
    result$conf.high <- table$high
  }
  result
}

#' @rdname dp_glm_methods
#' @exportS3Method posterior::as_draws_df
as_draws_df.dp_glm <- function(x, n = 4000, ...) {
  found <- ask("draws", fit = handle(x), n = check_number(n, "n"))
  posterior::as_draws_df(posterior::as_draws_matrix(structure(found$draws, dimnames = list(NULL, found$names))))
}

#' Contrasts and marginal effects
#'
#' @param fit A fit of [dp_glm()].
#' @param weights Named numbers: `c("job[T.nurse]" = 1, "job[T.cook]" = -1)`.
#' @param level Of the equal-tailed interval.
#' @param exp Whether to give a ratio.
#' @param newdata The caller's own points to average over; by default points that follow from the schema.
#' @return A data frame with `mean`, `sd`, `low`, `high`, and shares of the variance.
#' @export
dp_contrast <- function(fit, weights, level = 0.95, exp = FALSE) {
  if (!is.numeric(weights) || is.null(names(weights))) {
    refuse("weights must be named numbers: c(\"job[T.nurse]\" = 1, \"job[T.cook]\" = -1)")
  }
  as_table(ask("contrast", fit = handle(fit), weights = as.list(weights), level = check_level(level), exp = exp))
}

#' @rdname dp_contrast
#' @export
dp_marginal_effects <- function(fit, newdata = NULL, level = 0.95) {
  points <- if (is.null(newdata)) NULL else lapply(newdata, raw_column)
  as_table(ask("marginal_effects", fit = handle(fit), new_data = points, level = check_level(level)))
}

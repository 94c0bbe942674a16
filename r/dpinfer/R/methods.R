#' What a private regression says
#'
#' None of these reads a record, and none spends anything: all follow from the release.
#'
#' @param object,x A fit of [dp_glm()].
#' @param parm Names or places of coefficients, by default all.
#' @param level Of the equal-tailed intervals.
#' @param exp Odds or rate ratios instead of coefficients.
#' @param newdata A data frame of the caller's own points.
#' @param type `"response"`, a mean, a probability or a rate, or `"link"`. Unlike in [predict.glm()] the response is
#'   the default.
#' @param se.fit Also return posterior standard deviations.
#' @param interval `"confidence"` for the mean, `"prediction"` for a new response.
#' @param new Columns of groups that the points are not of: `new = "site"` is for a site that the release has not seen,
#'   whose effect is drawn from the law of the effects.
#' @param scope Terms to drop, by default each that no interaction holds.
#' @param formula. Changes of the formula, as for [update()]: `. ~ . - job`.
#' @param evaluate Whether to run the changed call, or to return it.
#' @param digits Significant digits.
#' @param n Number of independent draws.
#' @param ... For `update()`, changed arguments of [dp_glm()]; for `anova()`, fits of nested formulas. Else not used.
#' @return `summary()`: a table with the mean, the standard deviation, the interval, and the shares of the variance
#'   that are due to the privacy noise and to the prior alone; standard deviations of effects; remarks, and the verdict
#'   of the checks. `confint()`, `vcov()` and `predict()`: as for [lm()] and [glm()]. `drop1()` has a Wald test and a
#'   Bayes factor for each term. `anova()` adds terms one by one, with the Wald tests of one release; with several fits it
#'   compares the largest with the others, from the largest one's release alone.
#' @details `nobs()` is the number of records, or of protected units, that the fit used: noisy, as it was released, or the
#'   declared one where no sum tells it.
#'
#'   `update()` is a new private run: it spends `epsilon` and `delta` again.
#' @name dp_glm_methods
NULL

#' @rdname dp_glm_methods
#' @export
print.dp_glm <- function(x, digits = 4, ...) {
  cat(title_of(x), "\n\n", sep = "")
  print(signif(x$coefficients, digits))
  cat("\n", x$guarantee, "\n", sep = "")
  invisible(x)
}

title_of <- function(x) {
  used <- if (x$records == "") "" else sprintf("about %s used, ", whole(x$nobs))
  sprintf("%s  (family %s, records: %s%s declared, method %s, target %s)", x$text, x$family, used, whole(x$n_records),
    x$method, x$target)
}

# A whole number with all of its digits.
whole <- function(number) format(number, scientific = FALSE, digits = 15, trim = TRUE)

#' @rdname dp_glm_methods
#' @export
summary.dp_glm <- function(object, level = 0.95, exp = FALSE, ...) {
  table <- table_at(object, level, exp)
  told <- ask("summary", fit = handle(object), level = level, exp = exp, words = as.list(object$words))
  notes <- c(object$notes, told$notes)
  # What coef(summary(fit)) has of other models.
  coefficients <- as.matrix(table[names(object$coefficients), c("mean", "sd", "low", "high")])
  colnames(coefficients) <- c(if (exp) c("Ratio", "Std. Error of log") else c("Estimate", "Std. Error"), ends_of(level))
  structure(
    list(
      coefficients = coefficients, table = table, scales = if (is.null(told$scales)) NULL else as_table(told$scales), notes = notes, level = level,
      exp = exp, effects = object$effects, title = title_of(object), guarantee = object$guarantee
    ),
    class = "summary.dp_glm"
  )
}

#' @rdname dp_glm_methods
#' @export
print.summary.dp_glm <- function(x, digits = 4, ...) {
  cat(x$title, "\n\n", sep = "")
  print_table(x$table, x$level, digits, x$exp)
  if (!is.null(x$scales)) {
    cat("\nstandard deviations of ", paste(x$effects, collapse = ", "), ":\n", sep = "")
    print_table(x$scales, x$level, digits)
  }
  cat("\n")
  for (note in x$notes) cat(strwrap(note, width = 0.95 * getOption("width"), exdent = 2), sep = "\n")
  cat("\n", x$guarantee, "\n", sep = "")
  invisible(x)
}

print_table <- function(table, level, digits, exp = FALSE) {
  shown <- as.matrix(vapply(table[c("mean", "sd", "low", "high")], formatC, character(nrow(table)), digits = digits))
  shares <- vapply(table[c("privacy", "prior")], function(own) {
    ifelse(is.na(own), "", sprintf("%.0f%%", 100 * own))
  }, character(nrow(table)))
  shown <- cbind(matrix(shown, nrow(table)), matrix(shares, nrow(table)))
  tail <- 50 * (1 - level)
  dimnames(shown) <- list(row.names(table), c(if (exp) c("ratio", "sd of log") else c("mean", "sd"),
    paste0(c(tail, 100 - tail), "%"), "privacy", "prior"))
  print(shown[, colSums(shown != "") > 0, drop = FALSE], quote = FALSE, right = TRUE)
  for (place in which(table$remark != "")) cat(row.names(table)[place], ": ", table$remark[place], "\n", sep = "")
}

ends_of <- function(level) {
  tail <- 50 * (1 - level)
  paste(format(c(tail, 100 - tail), trim = TRUE, digits = 3), "%")
}

#' @export
coef.dp_glm <- function(object, ...) object$coefficients

#' @rdname dp_glm_methods
#' @export
confint.dp_glm <- function(object, parm, level = 0.95, ...) {
  table <- table_at(object, level)[names(object$coefficients), ]
  ends <- as.matrix(table[c("low", "high")])
  colnames(ends) <- ends_of(level)
  if (missing(parm)) ends else ends[parm, , drop = FALSE]
}

#' @rdname dp_glm_methods
#' @export
vcov.dp_glm <- function(object, ...) object$cov

#' @export
nobs.dp_glm <- function(object, ...) object$nobs

#' @export
formula.dp_glm <- function(x, ...) if (is.null(x$formula)) x$text else x$formula

#' @export
terms.dp_glm <- function(x, ...) {
  if (is.null(x$formula)) {
    refuse("x must be of this session: a fit that was read from files has its formula as a text")
  }
  stats::terms(x$formula)
}

#' @export
sigma.dp_glm <- function(object, ...) {
  if (object$family != "gaussian") {
    refuse("object must be of family gaussian: others have no standard deviation of their own")
  }
  scales <- if (length(object$effects) > 0) scales_of(object, 0.95)$table else object$table
  scales["sigma", "mean"]
}

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
                           interval = c("none", "confidence", "prediction"), level = 0.95, new = NULL, ...) {
  type <- one_of(type, c("response", "link"), "type")
  interval <- one_of(interval, c("none", "confidence", "prediction"), "interval")
  level <- check_level(level)
  if (missing(newdata) || !is.data.frame(newdata)) {
    refuse("newdata must be a data frame of your own points: the records are not kept")
  }
  points <- points_of(object, newdata)
  if (!is.null(new)) {
    if (type == "link" || interval != "none") {
      refuse("new must be NULL with a link or an interval: new groups have a mean, and se.fit")
    }
    found <- ask("new_groups", fit = handle(object), new_data = points, groups = as.list(as.character(new)))
    mean <- structure(found$mean, names = row.names(newdata))
    return(if (se.fit) list(fit = mean, se.fit = structure(found$sd, names = names(mean))) else mean)
  }
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

# The columns of the caller's points that the formula has.
points_of <- function(fit, newdata) {
  raw_columns(newdata, fit$columns, intersect(column_names(newdata), names(fit$columns)))
}

#' @rdname dp_glm_methods
#' @export
plot.dp_glm <- function(x, level = 0.95, ...) {
  ends <- confint(x, level = level)
  shown <- setdiff(rownames(ends), c("(Intercept)", "intercept"))
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

#' Contrasts and marginal effects
#'
#' @param fit A fit of [dp_glm()].
#' @param weights Named numbers: `c(jobnurse = 1, jobcook = -1)`. Names are those of [coef()], or Python's.
#' @param level Of the equal-tailed interval.
#' @param exp Whether to give a ratio.
#' @param newdata The caller's own points to average over; by default points that follow from the schema.
#' @return A data frame with `mean`, `sd`, `low`, `high`, and shares of the variance.
#' @export
dp_contrast <- function(fit, weights, level = 0.95, exp = FALSE) {
  if (!is.numeric(weights) || is.null(names(weights))) {
    refuse("weights must be named numbers: c(jobnurse = 1, jobcook = -1)")
  }
  words <- fit$words
  place <- match(names(weights), words)
  label <- paste(ifelse(weights < 0, "-", "+"), format(abs(weights), trim = TRUE), names(weights), collapse = " ")
  names(weights) <- ifelse(is.na(place), names(weights), names(words)[place])
  found <- ask("contrast", fit = handle(fit), weights = as.list(weights), level = check_level(level), exp = exp)
  as_table(found, structure(sub("^\\+ ", "", label), names = found$name))
}

#' @rdname dp_contrast
#' @export
dp_marginal_effects <- function(fit, newdata = NULL, level = 0.95) {
  points <- if (is.null(newdata)) NULL else points_of(fit, newdata)
  as_table(ask("marginal_effects", fit = handle(fit), new_data = points, level = check_level(level)), fit$words)
}

#' Effects of groups and of persons
#'
#' As of lme4: `fixef()` has the coefficients, `ranef()` the effects of groups, shrunken to their middle, and `VarCorr()`
#' the standard deviations and correlations. Effects of groups are those of declared groups. Those of persons that
#' `unit` protects are not released.
#'
#' @param object,x A fit of [dp_glm()].
#' @param sigma Not used.
#' @param level Of the equal-tailed intervals.
#' @param ... Not used.
#' @return `fixef()`: as [coef()]. `ranef()`: a list with a data frame for each column of groups, a row for each group, and
#'   posterior standard deviations in its attribute `"sd"`. `VarCorr()`: a data frame with `grp`, `var1` and `var2` as of
#'   lme4, the posterior mean `sdcor` of the standard deviation or correlation, and its interval.
#' @name dp_glm_mixed
NULL

#' @rdname dp_glm_mixed
#' @method fixef dp_glm
#' @export
fixef.dp_glm <- function(object, ...) object$coefficients

#' @rdname dp_glm_mixed
#' @method ranef dp_glm
#' @export
ranef.dp_glm <- function(object, level = 0.95, ...) {
  found <- effects_of(object, level)
  groups <- vapply(found, function(own) own$group, "")
  structure(lapply(unique(groups), function(group) {
    parts <- found[groups == group]
    frame <- function(what) {
      columns <- unlist(lapply(parts, function(own) {
        split(own$table[[what]], rep(factor(own$kinds, own$kinds), each = length(own$labels)))
      }), recursive = FALSE)
      data.frame(columns, row.names = parts[[1]]$labels, check.names = FALSE)
    }
    structure(frame("mean"), sd = frame("sd"))
  }), names = unique(groups))
}

#' @rdname dp_glm_mixed
#' @method VarCorr dp_glm
#' @export
VarCorr.dp_glm <- function(x, sigma = 1, level = 0.95, ...) {
  found <- scales_of(x, level)
  data.frame(grp = found$grp, var1 = found$var1, var2 = found$var2, sdcor = found$table$mean, sd = found$table$sd,
    low = found$table$low, high = found$table$high, remark = found$table$remark, stringsAsFactors = FALSE)
}

scales_of <- function(x, level) {
  told <- ask("summary", fit = handle(x), level = check_level(level), exp = FALSE, words = as.list(x$words))$scales
  if (is.null(told)) {
    refuse("the fit must have effects: (1 | site), s(age), or (1 | person) with unit")
  }
  places <- do.call(rbind, told$places)
  list(grp = places[, 1], var1 = places[, 2], var2 = places[, 3], table = as_table(told))
}

effects_of <- function(x, level) {
  lapply(ask("effects", fit = handle(x), level = check_level(level)), function(own) {
    list(group = own$group, labels = own$labels, kinds = own$kinds, table = as_table(own))
  })
}

#' @rdname dp_glm_methods
#' @export
drop1.dp_glm <- function(object, scope, ...) {
  terms <- if (missing(scope)) marginal(object$labels) else scope_terms(scope, object)
  if (length(terms) == 0) {
    refuse("scope must have a term, and the formula has none but effects of groups")
  }
  rows <- lapply(terms, function(term) as.data.frame(without(object, term)))
  found <- do.call(rbind, rows)
  table <- data.frame(
    Df = found$columns, Wald = found$wald, "Pr(>Chi)" = found$p_value, "log Bayes factor" = found$log_bayes_factor,
    row.names = terms, check.names = FALSE
  )
  structure(table, heading = paste0("Without each term: ", object$text, "\n"), class = c("anova", "data.frame"))
}

#' @rdname dp_glm_methods
#' @export
anova.dp_glm <- function(object, ...) {
  others <- list(...)
  if (length(others) > 0) {
    return(nested(c(list(object), others)))
  }
  terms <- object$labels
  # Of one quadratic form: the test of a term with the later ones at zero is a difference of two.
  tail <- c(vapply(seq_along(terms), function(k) without(object, terms[k:length(terms)])$wald, 0), 0)
  each <- vapply(terms, function(term) without(object, term)$columns, 0)
  statistic <- pmax(0, -diff(tail))
  table <- data.frame(Df = each, Chisq = statistic,
    "Pr(>Chisq)" = stats::pchisq(statistic, each, lower.tail = FALSE), row.names = terms, check.names = FALSE)
  structure(table, class = c("anova", "data.frame"),
    heading = paste0("Wald tests, terms added one by one: ", object$text, "\n"))
}

nested <- function(fits) {
  if (!all(vapply(fits, inherits, NA, "dp_glm"))) {
    refuse("anova() must have fits of dp_glm()")
  }
  sizes <- vapply(fits, function(fit) length(fit$labels), 0)
  largest <- fits[[which.max(sizes)]]
  smaller <- fits[-which.max(sizes)]
  rows <- lapply(smaller, function(fit) {
    same <- identical(fit$family, largest$family) && identical(response_of(fit), response_of(largest))
    if (!same || !all(fit$labels %in% largest$labels) || length(fit$labels) == length(largest$labels)) {
      refuse(paste("anova() must have fits whose terms are all in the largest one, of one response and family:",
        "two releases hold no likelihood to compare others with. Fit the terms of both in one formula"))
    }
    as.data.frame(without(largest, setdiff(largest$labels, fit$labels)))
  })
  found <- do.call(rbind, rows)
  table <- data.frame(
    Df = found$columns, Chisq = found$wald, "Pr(>Chisq)" = found$p_value, "log Bayes factor" = found$log_bayes_factor,
    row.names = make.unique(vapply(smaller, function(fit) fit$text, "")), check.names = FALSE
  )
  structure(table, class = c("anova", "data.frame"),
    heading = paste0("From the release of ", largest$text, " alone, against each smaller formula:\n"))
}

response_of <- function(fit) sub(" ~ .*", "", fit$text)

# A comparison with the fit without some terms, named as in R or in Python.
without <- function(object, terms) {
  place <- match(terms, object$labels)
  python <- ifelse(is.na(place), terms, object$labels_python[place])
  own <- match(python, object$words)
  python <- ifelse(is.na(own), python, names(object$words)[own])
  ask("compare", fit = handle(object), without = as.list(python))
}

scope_terms <- function(scope, object) {
  if (inherits(scope, "formula")) attr(stats::terms(stats::update.formula(stats::formula(object), scope)), "term.labels")
  else as.character(scope)
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
#' @export
update.dp_glm <- function(object, formula., ..., evaluate = TRUE) {
  call <- object$call
  if (is.null(call)) {
    refuse("object must be of this session: a fit that was read from files has no call to change")
  }
  if (!missing(formula.)) {
    call$formula <- stats::update.formula(object$formula, formula.)
  }
  changed <- match.call(expand.dots = FALSE)$...
  for (name in names(changed)) call[[name]] <- changed[[name]]
  if (evaluate) eval(call, parent.frame()) else call
}

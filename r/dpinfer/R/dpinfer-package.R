#' Regressions under differential privacy
#'
#' [dp_glm()] fits a linear or generalised linear model of a table with differential privacy. [dp_schema()] writes down
#' what is public about the table. [read_release()] reads what a private run has published, without Python.
#'
#' @keywords internal
#' @importFrom stats anova coef confint drop1 family formula nobs predict quantile residuals sigma terms
#' @importFrom stats update vcov
#' @importFrom generics augment glance tidy
#' @importFrom nlme fixef ranef VarCorr
"_PACKAGE"

#' @export
generics::tidy

#' @export
generics::glance

#' @export
generics::augment

#' @export
nlme::fixef

#' @export
nlme::ranef

#' @export
nlme::VarCorr

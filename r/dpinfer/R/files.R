#' Files of a fit
#'
#' `dp_save()` writes all that a fit is into a folder, and `dp_load()` reads it. `dp_write()` writes one thing: the
#' release, which [read_release()] reads without Python; its certificate, which an auditor checks without this library;
#' or a report as a page of HTML.
#'
#' @param fit A fit of [dp_glm()].
#' @param folder,path Where it is written to, or read from.
#' @param names As of [dp_glm()].
#' @param what `"release"`, `"certificate"` or `"report"`.
#' @param ledger For a certificate: the path of the ledger that the run was charged to.
#' @return The fit.
#' @export
dp_save <- function(fit, folder) {
  ask("write", fit = handle(fit), what = "folder", path = path.expand(folder), ledger = NULL)
  invisible(fit)
}

#' @rdname dp_save
#' @export
dp_load <- function(folder, names = c("R", "python")) {
  made(ask("load", folder = path.expand(folder)), one_of(names, c("R", "python"), "names"))
}

#' @rdname dp_save
#' @export
dp_write <- function(fit, path, what = c("release", "certificate", "report"), ledger = NULL) {
  ask("write", fit = handle(fit), what = one_of(what, c("release", "certificate", "report"), "what"), path = path.expand(path), ledger = ledger)
  invisible(fit)
}

#' An account that counts what was spent
#'
#' A ledger is a file. Every fit that is given an account of it is charged before a record is read, and is refused where
#' the budget would be exceeded.
#'
#' @param path The file; it is made if it is not there.
#' @param dataset What counts as one set of data, under a public name.
#' @param epsilon,delta The budget of all fits together; `NULL` to count only.
#' @param x An account.
#' @param ... Not used.
#' @return An account, for `ledger` of [dp_glm()].
#' @export
dp_ledger <- function(path, dataset, epsilon = NULL, delta = NULL) {
  if (is.null(epsilon) != is.null(delta)) {
    refuse("epsilon and delta must be given together, or neither")
  }
  path <- path.expand(path)
  ask("create_account", path = path, dataset = dataset, epsilon = epsilon, delta = delta)
  structure(list(path = path, dataset = dataset), class = "dp_ledger")
}

#' @rdname dp_ledger
#' @export
print.dp_ledger <- function(x, ...) {
  found <- ask("spent", path = x$path, dataset = x$dataset)
  cat(sprintf("%s: %.0f runs, together (%.4g, %.3g)-differentially private", x$dataset, found$runs, found$epsilon,
    found$delta))
  cat(if (is.nan(found$remaining)) "\n" else sprintf("; epsilon that remains: %.4g\n", found$remaining))
  invisible(x)
}

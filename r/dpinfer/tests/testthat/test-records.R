skip_if_not(dp_available(), "Python with dpinfer is not found")

# After an error R keeps the calls: sys.calls() where it is handled, traceback() at the prompt.
calls_at <- function(action) {
  found <- NULL
  # Those of the test itself are not its subject.
  outer <- seq_len(sys.nframe())
  keep <- function(e) found <<- as.list(sys.calls())[-outer]
  error <- tryCatch(withCallingHandlers(action(), error = keep), error = identity)
  expect_s3_class(error, "dpinfer_error")
  list(calls = found, error = error)
}

# The longest vector in calls, and whether a text is in them, as objects or deparsed.
longest <- function(part) {
  if (!is.call(part) && !is.pairlist(part) && !is.list(part)) {
    return(length(part))
  }
  max(0, vapply(seq_along(part), function(k) if (identical(part[[k]], quote(expr = ))) 0 else longest(part[[k]]), 0))
}

canary <- "Zyx Canary, 5551234"
people <- local({
  set.seed(1)
  rows <- data.frame(x = runif(2000, 0, 10), who = rep(c(canary, "a", "b", "c"), 500), day = as.Date("2020-02-03"))
  rows$y <- 1 + 0.5 * rows$x + rnorm(2000)
  rows$cell <- as.list(rows$x)
  rows
})
schema <- dp_schema(x = dp_continuous(0, 10), y = dp_continuous(-5, 12), who = dp_categorical(c("a", "b", "c")),
  day = dp_continuous(0, 1), cell = dp_ignored())
private <- function(...) dp_glm(..., schema = schema, epsilon = 1, delta = 1e-6, n_records = 2000)

test_that("no call that an error leaves holds a record", {
  account <- dp_ledger(tempfile(), "spent", epsilon = 0.1, delta = 1e-6)
  fit <- dp_glm(y ~ x, people, schema, epsilon = 1, delta = 1e-6, n_records = 2000)
  other <- dp_glm(y ~ x, people, schema, epsilon = 1, delta = 1e-6, n_records = 2000)
  actions <- list(
    function() private(y ~ z, people), function() private(y ~ who, people), function() private(y ~ day, people),
    function() private(y ~ cell, people), function() private(y ~ x + x:z, people),
    function() private(y ~ lag(x), people), function() private(y ~ x, people, weights = people$x),
    function() private(y ~ x, people, subset = x > mean(x)), function() private(y ~ x, people, subset = -who == 1),
    function() private(y ~ x, people, ledger = account), function() private(y ~ x, people, strata = who),
    function() private(y ~ x, people, family = binomial()), function() private(y ~ x, people, na.action = na.pass),
    function() private(y ~ x, as.list(people)), function() private(y ~ x, people, prior = "flat"),
    function() update(fit, epsilon = -1), function() predict(fit, people["who"]),
    function() predict(fit, people, interval = "none", new = "x"), function() dp_contrast(fit, c(who = 1)),
    function() dp_marginal_effects(fit, people["y"]), function() anova(fit, other), function() augment(fit, people),
    function() dp_glm(y ~ x, people, schema, epsilon = -1, delta = 1e-6, n_records = 2000)
  )
  for (action in actions) {
    found <- calls_at(action)
    ours <- Filter(function(call) is.call(call), found$calls)
    expect_gt(length(ours), 2)
    # 4 lines of a source reference, and the words of one_of(), are the longest vectors of a call that holds no record.
    expect_lt(max(vapply(ours, longest, 0)), 10)
    expect_false(any(grepl("Canary|555123", vapply(ours, function(call) paste(deparse(call), collapse = ""), ""))))
    expect_null(conditionCall(found$error))
    expect_false(grepl("Canary|555123", conditionMessage(found$error)))
  }
  # The test sees what it looks for: records that a caller has put into the call.
  found <- calls_at(function() do.call(private, list(y ~ z, people)))
  expect_gt(max(vapply(found$calls, longest, 0)), 1000)
})

test_that("a column is read without a warning, which could quote it", {
  odd <- data.frame(y = c("1e999", "\xff", canary, NA), x = factor(people$who[1:4]))
  expect_silent(dpinfer:::raw_columns(odd, schema$columns))
})

test_that("no part of a fit holds a record", {
  rows <- people
  rows$who <- rep(c("a", "b", "c", "a"), 500)
  rows$x[1:1000] <- 5.551234
  kinds <- list(
    dp_glm(y ~ x + who, rows, schema, epsilon = 1, delta = 1e-6, n_records = 2000, subset = x > 1),
    dp_glm(y ~ x + (1 | who), rows, schema, epsilon = 1, delta = 1e-6, n_records = 2000),
    do.call(dp_glm, list(y ~ x, rows, schema, epsilon = 1, delta = 1e-6, n_records = 2000)),
    dp_glm(y ~ x, rows[rows$x > 2, ], schema, epsilon = 1, delta = 1e-6, n_records = 2000)
  )
  for (fit in kinds) {
    fit$python <- NULL
    expect_lt(length(serialize(fit, NULL)), 12000)
    expect_false(any(grepl("5.551234", utils::capture.output(print(unclass(fit))), fixed = TRUE)))
  }
  expect_identical(kinds[[3]]$call$data, as.name("data"))
})

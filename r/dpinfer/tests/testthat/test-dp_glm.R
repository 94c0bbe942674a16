skip_if_not(dp_available(), "Python with dpinfer is not found")

people <- local({
  set.seed(3)
  size <- 4000
  rows <- data.frame(age = runif(size, 18, 80), job = factor(sample(c("clerk", "cook", "nurse"), size, TRUE)))
  rows$pay <- 5 + 0.4 * rows$age + 3 * (rows$job == "nurse") + rnorm(size, sd = 4)
  rows$rich <- rows$pay > 26
  rows
})
schema <- dp_schema(
  age = dp_continuous(17, 90), job = dp_categorical(c("clerk", "cook", "nurse")), pay = dp_continuous(-20, 80),
  rich = dp_binary(TRUE, FALSE)
)
private <- function(formula, ..., n_records = 4000) {
  dp_glm(formula, people, schema, epsilon = 2, delta = 1e-6, ..., n_records = n_records)
}
fit <- private(pay ~ age + job)

test_that("coefficients are near those of lm, in its units", {
  plain <- lm(pay ~ age + job, people)
  ours <- coef(fit)[c("(Intercept)", "age", "jobcook", "jobnurse")]
  # Both are within normal errors of the truth: 6 posterior standard deviations, 4 coefficients, is below 1e-8.
  expect_true(all(abs(ours - coef(plain)) < 6 * sqrt(diag(vcov(fit)))[names(ours)]))
  expect_true(all(sqrt(diag(vcov(fit)))[names(ours)] > 0.5 * sqrt(diag(vcov(plain)))))
})

test_that("the methods agree with each other", {
  ends <- confint(fit, level = 0.9)
  expect_identical(dim(ends), c(4L, 2L))
  expect_true(all(ends[, 1] < coef(fit) & coef(fit) < ends[, 2]))
  expect_true(all(confint(fit)[, 2] > ends[, 2]))
  expect_identical(rownames(confint(fit, "age")), "age")
  expect_equal(summary(fit)$table["age", "sd"], sqrt(vcov(fit)["age", "age"]))
  expect_output(print(summary(fit)), "differentially private")
  expect_identical(coef(summary(fit))[, "Estimate"], coef(fit))
  expect_identical(colnames(coef(summary(fit, level = 0.9)))[3:4], colnames(ends))
  expect_identical(attr(terms(fit), "term.labels"), c("age", "job"))
  expect_equal(sigma(fit), summary(fit)$table["sigma", "mean"])
  expect_output(print(fit), "pay ~ age \\+ job")
  expect_equal(formula(fit), pay ~ age + job, ignore_formula_env = TRUE)
  expect_equal(fit$n_records, 4000)
  expect_lt(abs(nobs(fit) - 4000), 600)
  found <- tidy(fit, conf.int = TRUE, conf.level = 0.9)
  expect_equal(found$conf.low[found$term == "age"], ends[["age", 1]])
  expect_named(found, c("term", "estimate", "std.error", "privacy", "prior", "conf.low", "conf.high"))
  expect_identical(found$term, names(coef(fit)))
})

test_that("predictions are those of the coefficients, with intervals", {
  new <- data.frame(age = c(30, 50, NA), job = c("clerk", "nurse", "cook"))
  found <- predict(fit, new, interval = "confidence", se.fit = TRUE)
  by_hand <- coef(fit)[["(Intercept)"]] + coef(fit)[["age"]] * c(30, 50) + c(0, coef(fit)[["jobnurse"]])
  # The mean of 4000 draws: 6 of its standard errors.
  expect_true(all(abs(found$fit[1:2, "fit"] - by_hand) < 6 * found$se.fit[1:2] / sqrt(4000)))
  expect_true(is.na(found$fit[3, "fit"]))
  wide <- predict(fit, new[1:2, ], interval = "prediction")
  expect_true(all(wide[, "upr"] - wide[, "lwr"] > 10 * 1.2))
  expect_warning(predict(fit, data.frame(age = 200, job = "cook")), "beyond the public bounds")
  expect_error(predict(fit), "newdata")
  # Other columns of the table are not looked at.
  wide <- cbind(new[1:2, ], day = as.Date("2020-01-01"))
  wide$cell <- list(1, 2)
  expect_identical(predict(fit, wide), predict(fit, new[1:2, ]))
  expect_error(predict(fit, transform(new, age = as.Date("2020-01-01"))), "column 'age'", class = "dpinfer_argument")
  expect_error(predict(fit, new["age"]), "job", class = "dpinfer_error")
})

test_that("terms are dropped, contrasts are taken, and draws are drawn", {
  found <- drop1(fit)
  expect_identical(rownames(found), c("age", "job"))
  expect_identical(found$Df, c(1, 2))
  nurses <- dp_contrast(fit, c(jobnurse = 1, jobcook = -1))
  expect_identical(row.names(nurses), "1 jobnurse - 1 jobcook")
  expect_identical(nurses$mean, dp_contrast(fit, c("job[T.nurse]" = 1, "job[T.cook]" = -1))$mean)
  expect_equal(nurses$mean, coef(fit)[["jobnurse"]] - coef(fit)[["jobcook"]], tolerance = 1e-6)
  expect_true("age" %in% rownames(dp_marginal_effects(fit)))
  skip_if_not_installed("posterior")
  draws <- posterior::as_draws_df(fit, n = 1000)
  expect_s3_class(draws, "draws_df")
  expect_identical(nrow(draws), 1000L)
  expect_lt(abs(mean(draws$age) - coef(fit)[["age"]]), 6 * sqrt(vcov(fit)["age", "age"] / 1000))
})

test_that("a binary response has odds ratios, and a link", {
  odds <- private(rich ~ age, family = binomial())
  expect_gt(summary(odds, exp = TRUE)$table["age", "mean"], 1)
  chance <- predict(odds, data.frame(age = 40))
  expect_true(chance > 0 && chance < 1)
  expect_equal(unname(predict(odds, data.frame(age = 40), type = "link")), qlogis(unname(chance)), tolerance = 0.01)
  expect_equal(family(odds)$family, "binomial")
})

test_that("a fit is kept in a folder, and its release is read without Python", {
  folder <- tempfile()
  dp_save(fit, folder)
  expect_identical(coef(dp_load(folder)), coef(fit))
  path <- tempfile()
  dp_write(fit, path)
  found <- read_release(path)
  expect_identical(found$header$certified_epsilon <= 2, TRUE)
  dp_write(fit, path, "certificate")
  expect_match(readLines(path, warn = FALSE), "dpinfer-certificate")
  gone <- fit
  gone$python <- NULL
  expect_error(predict(gone, data.frame(age = 30, job = "cook")), "dp_load")
})

test_that("a ledger refuses what exceeds its budget", {
  account <- dp_ledger(tempfile(), "people", epsilon = 2.5, delta = 1e-5)
  private(pay ~ age, ledger = account)
  expect_output(print(account), "1 runs")
  expect_error(private(pay ~ age, ledger = account), class = "dpinfer_budgetexceeded")
})

test_that("errors are in the words of the library, without a traceback", {
  message <- function(call) conditionMessage(expect_error(call, class = "dpinfer_error"))
  told <- c(
    message(private(pay ~ age, weights = people$age)), message(private(pay ~ ages)), message(private(pay ~ ns(age))),
    message(dp_glm(pay ~ age, people, schema, epsilon = -1, delta = 1e-6, n_records = 4000)),
    message(private(rich ~ age)), message(residuals(fit)), message(logLik(fit)), message(fitted(fit)),
    message(dp_glm(pay ~ age, "no-such-file.csv", schema, 1, 1e-6, n_records = 10)), message(private(pay ~ log(age - 50)))
  )
  expect_false(any(grepl("Traceback|File \"|py_|reticulate", told)))
  expect_match(told[1], "weights")
})

test_that("what nobody knows is released first", {
  found <- private(pay ~ age, n_records = NULL)
  expect_lt(abs(nobs(found) - 4000), 600)
  expect_equal(found$epsilon, 2, tolerance = 0.01)
})

test_that("what saveRDS() would write of a fit holds no record", {
  expect_identical(environment(formula(fit)), globalenv())
  hidden <- local({
    rows <- people
    dp_glm(pay ~ age, rows, schema, epsilon = 2, delta = 1e-6, n_records = 4000)
  })
  expect_lt(length(serialize(hidden, NULL)), 8 * nrow(people) / 2)
})

test_that("a plot is drawn", {
  path <- tempfile(fileext = ".pdf")
  grDevices::pdf(path)
  plot(fit)
  grDevices::dev.off()
  expect_gt(file.size(path), 1000)
})

skip_if_not(dp_available(), "Python with dpinfer is not found")

people <- local({
  set.seed(4)
  size <- 3000
  rows <- data.frame(age = runif(size, 18, 80), hours = runif(size, 10, 60), member = sample(c(TRUE, FALSE), size, TRUE))
  jobs <- c("clerk", "cook", "nurse: ICU", "T.a [b]")
  rows$job <- factor(sample(jobs, size, TRUE), jobs)
  rows$site <- sample(c("a", "b", "c"), size, TRUE)
  rows[["my hours"]] <- rows$hours
  rows$a.b <- rows$age
  rows[["a kind"]] <- rows$site
  rows$pay <- 5 + 0.4 * rows$age + 3 * (rows$job == "cook") + rnorm(size, sd = 4)
  rows$won <- rows$pay > 25
  rows
})
number <- function(lower, upper) dp_continuous(lower, upper)
schema <- dp_schema(age = number(17, 90), hours = number(1, 99), member = dp_binary(TRUE, FALSE), pay = number(-20, 80),
  job = dp_categorical(levels(people$job)), site = dp_categorical(c("a", "b", "c")), won = dp_binary(TRUE, FALSE),
  `my hours` = number(1, 99), a.b = number(17, 90), `a kind` = dp_categorical(c("a", "b", "c")))
private <- function(formula, ...) dp_glm(formula, people, schema, epsilon = 3, delta = 1e-6, n_records = 3000, ...)
# The columns are compared, not their constants: a spline of R has its knots from the records.
bs <- splines::bs

test_that("coefficients and terms have R's names, in R's order", {
  formulas <- list(
    pay ~ age + job, pay ~ job * age, pay ~ age * hours + site, pay ~ member + site:member + site, pay ~ log(age) + sqrt(hours),
    pay ~ I(age^2) + age, pay ~ poly(age, 2, raw = TRUE) + hours, pay ~ poly(age, 3), pay ~ bs(age, df = 4) + job,
    pay ~ factor(site) * hours, pay ~ relevel(job, ref = "cook"), pay ~ `my hours` + a.b + `a kind`, pay ~ log(`my hours`),
    pay ~ (age + hours + site)^2, log(pay + 30) ~ age, pay ~ I((age + hours) / 2) + I(-age * hours),
    pay ~ site / age, pay ~ offset(hours / 10) + age, pay ~ age + I(1 / hours), pay ~ bs(age, knots = c(30, 60)),
    pay ~ job:site + job + site, pay ~ age:site + site + age,
    pay ~ age - 1, pay ~ 0 + site + age
  )
  for (formula in formulas) {
    plain <- lm(formula, people)
    fit <- private(formula)
    expect_identical(names(coef(fit)), names(coef(plain)))
    expect_identical(colnames(vcov(fit)), names(coef(fit)))
    expect_identical(fit$labels, attr(terms(plain), "term.labels"))
    expect_identical(rownames(confint(fit)), names(coef(plain)))
  }
})

test_that("all other columns are those of the schema, in its order", {
  used <- c("age", "member", "job", "pay")
  fit <- dp_glm(pay ~ ., people, do.call(dp_schema, lapply(schema$columns[used], structure, class = "dp_column")),
    epsilon = 3, delta = 1e-6, n_records = 3000)
  expect_identical(names(coef(fit)), names(coef(lm(pay ~ ., people[used]))))
})

test_that("a name leads to its own coefficient", {
  fit <- private(pay ~ job * age + member)
  plain <- lm(pay ~ job * age + member, people)
  # 6 posterior standard deviations, 9 coefficients: below 1e-7 of a false alarm.
  expect_true(all(abs(coef(fit) - coef(plain)) < 6 * sqrt(diag(vcov(fit)))))
  for (name in names(coef(fit))) {
    one <- structure(1, names = name)
    expect_equal(dp_contrast(fit, one)$mean, coef(fit)[[name]], tolerance = 1e-8)
  }
  expect_identical(rownames(drop1(fit)), c("member", "job:age"))
  expect_equal(drop1(fit, "memberTRUE")$Wald, drop1(fit)["member", "Wald"])
  text <- paste(utils::capture.output(print(summary(fit))), collapse = " ")
  expect_false(grepl("[T.", text, fixed = TRUE))
})

test_that("Python's names are to be had", {
  found <- private(pay ~ job + member, names = "python")
  expect_identical(names(coef(found)),
    c("intercept", "job[T.cook]", "job[T.nurse: ICU]", "job[T.T.a [b]]", "member[T.true]"))
  expect_identical(rownames(confint(found, "intercept")), "intercept")
  folder <- tempfile()
  dp_save(found, folder)
  expect_identical(coef(dp_load(folder, names = "python")), coef(found))
  expect_identical(names(coef(dp_load(folder))),
    c("(Intercept)", "jobcook", "jobnurse: ICU", "jobT.a [b]", "memberTRUE"))
})

test_that("classes of a response have names of their own", {
  fit <- private(site ~ age, family = "multinomial")
  expect_setequal(names(coef(fit)), c("b:(Intercept)", "b:age", "c:(Intercept)", "c:age"))
  expect_identical(colnames(predict(fit, data.frame(age = 30))), c("a", "b", "c"))
})

test_that("a formula means what it means in R", {
  text <- function(formula) dpinfer:::formula_text(formula)
  expect_identical(text(y ~ age * job - 1), "y ~ age * job - 1")
  expect_identical(text(log(y) ~ (a + b)^2), "log(y) ~ (a + b) ** 2")
  expect_identical(text(y ~ factor(job) + I(age^2)), "y ~ C(job) + I(age ** 2)")
  expect_identical(text(y ~ bs(age, knots = c(30, 60))), "y ~ bs(age, knots=[30, 60])")
  expect_identical(text(y ~ poly(age, 3, raw = TRUE)), "y ~ poly(age, 3, raw=True)")
  expect_identical(text(y ~ `hours per week` + a.b), "y ~ `hours per week` + `a.b`")
  expect_error(text(~ age), class = "dpinfer_argument")
  expect_error(text(y ~ a %in% b), "column", class = "dpinfer_argument")
})

test_that("families are those that are known", {
  name <- function(family) dpinfer:::family_name(family)
  expect_identical(name(gaussian), "gaussian")
  expect_identical(name(binomial("probit")), "probit")
  expect_identical(name("multinomial"), "multinomial")
  expect_error(name(Gamma()), "Gamma", class = "dpinfer_argument")
  expect_error(name(poisson("identity")), "identity", class = "dpinfer_argument")
})

test_that("a schema is checked", {
  expect_error(dp_schema(dp_continuous(0, 1)), "distinct names")
  expect_error(dp_schema(age = c(0, 1)), "dp_continuous")
  expect_error(dp_continuous(0), "together")
  expect_output(print(dp_schema(age = dp_continuous(17, 90), job = dp_categorical())), "categories unknown")
})

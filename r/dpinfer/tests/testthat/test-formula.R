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

test_that("a blank schema has the columns' names and kinds, and no value", {
  table <- data.frame(age = 551234.5, job = factor("Canary"), rich = TRUE, day = as.Date("2020-01-01"), name = "Canary")
  table[["my hours"]] <- 1L
  expect_output(code <- dp_schema_blank(table), "never from the records")
  expect_false(grepl("Canary|551234|2020", code))
  columns <- as.list(parse(text = code)[[1]])[-1]
  expect_named(columns, names(table))
  expect_identical(vapply(columns, function(own) as.character(own[[1]]), "", USE.NAMES = FALSE),
    paste0("dp_", c("continuous", "categorical", "binary", "ignored", "categorical", "continuous")))
  # Gaps are facts that nobody knows, until they are filled.
  expect_output(print(eval(parse(text = code))), "bounds unknown.*categories unknown")
})

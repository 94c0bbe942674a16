skip_if_not(dp_available(), "Python with dpinfer is not found")

people <- local({
  set.seed(5)
  size <- 4000
  rows <- data.frame(age = runif(size, 18, 80), w = sample(c(1, 3), size, TRUE), village = rep(1:200, each = 20))
  rows$region <- sample(c("north", "south"), size, TRUE)
  rows$site <- factor(sample(sprintf("site %02d", 1:12), size, TRUE))
  rows$pay <- 5 + 0.4 * rows$age + rnorm(200)[rows$village] + rnorm(12)[rows$site] + rnorm(size, sd = 4)
  rows$rich <- rows$pay > 22
  rows$grade <- cut(rows$age, c(0, 40, 60, 100), c("low", "mid", "high"), ordered_result = TRUE)
  rows
})
schema <- dp_schema(
  age = dp_continuous(17, 90), w = dp_continuous(0, 3, mean = 2, sd = 1), village = dp_ignored(),
  region = dp_categorical(c("north", "south")), site = dp_categorical(sprintf("site %02d", 1:12)),
  pay = dp_continuous(-20, 80), rich = dp_binary(TRUE, FALSE), grade = dp_categorical(c("low", "mid", "high"))
)
private <- function(formula, ..., data = people, epsilon = 3, n_records = 4000) {
  dp_glm(formula, data, schema, epsilon = epsilon, delta = 1e-6, n_records = n_records, ...)
}
told <- function(fit) gsub(" +", " ", paste(utils::capture.output(print(summary(fit))), collapse = " "))

test_that("weights, clusters and strata are columns, named as lm() and svydesign() take them", {
  surveyed <- private(pay ~ age, weights = w, clusters = ~village, strata = "region")
  expect_match(told(surveyed), "design-based")
  column <- "village"
  expect_match(told(private(pay ~ age, clusters = column)), "cluster-robust")
  skip_if_not_installed("survey")
  design <- survey::svydesign(~village, strata = NULL, weights = ~w, data = people)
  plain <- survey::svyglm(pay ~ age, design)
  found <- private(pay ~ age, weights = ~w, clusters = ~village, epsilon = 50)
  # Next to no noise: within half a standard error, and 25% of its width with 200 clusters.
  expect_true(all(abs(coef(found) - coef(plain)) < 0.5 * survey::SE(plain)))
  expect_lt(max(abs(log(sqrt(diag(vcov(found))) / survey::SE(plain)))), 0.25)
  expect_error(private(pay ~ age, weights = people$w), "weights must name one column", class = "dpinfer_argument")
  expect_error(private(pay ~ age, weights = nowhere), "weights must name a column", class = "dpinfer_argument")
  expect_error(private(pay ~ age, data = design), "data frame", class = "dpinfer_argument")
})

test_that("a unit is protected with all of its rows", {
  found <- private(pay ~ age, unit = dp_unit("village", max_rows = 20), n_records = 200)
  expect_match(told(found), "adding or removing one (record|unit)")
  expect_equal(found$n_records, 200)
  expect_match(told(found), "cluster-robust|rows of a unit")
  expect_error(private(pay ~ age, unit = "village"), "dp_unit", class = "dpinfer_argument")
  expect_error(dp_unit("village"), "max_rows", class = "dpinfer_argument")
  expect_identical(dp_unit(~village, 3)$ids, "village")
})

test_that("effects of groups and curves are those of lme4 and mgcv", {
  fit <- private(pay ~ age + (1 | site))
  expect_identical(names(fixef(fit)), c("(Intercept)", "age"))
  expect_identical(fixef(fit), coef(fit))
  expect_identical(dim(vcov(fit)), c(2L, 2L))
  expect_identical(dim(ranef(fit)$site), c(12L, 1L))
  expect_identical(VarCorr(fit)$grp, c("site", "Residual"))
  expect_match(told(fit), "standard deviations of \\(1 \\| site\\)")
  expect_identical(fit$labels, "age")
  expect_named(predict(fit, data.frame(age = 30), new = "site", se.fit = TRUE), c("fit", "se.fit"))
  expect_identical(tidy(fit, effects = c("fixed", "ran_pars"))$term,
    c("(Intercept)", "age", "sd__(Intercept)", "sd__Observation"))
  expect_identical(nrow(tidy(fit, effects = "ran_vals")), 12L)
  slopes <- private(pay ~ age + (1 + age | site))
  expect_identical(names(ranef(slopes)$site), c("(Intercept)", "age"))
  expect_identical(VarCorr(slopes)$var2[3], "age")
  curve <- private(pay ~ s(age) + region)
  expect_true("s(age) line" %in% names(coef(curve)))
  expect_identical(curve$labels, "region")
  expect_error(ranef(private(pay ~ age)), "effects of groups", class = "dpinfer_argument")
  expect_error(private(pay ~ age | site), "in parentheses", class = "dpinfer_argument")
  expect_error(private(pay ~ te(age, w)), class = "dpinfer_error")
  expect_error(private(pay ~ s(age, bs = "cr")), class = "dpinfer_error")
  expect_error(private(pay ~ age + (1 | site / region)), "nested", class = "dpinfer_error")
  skip_if_not_installed("lme4")
  plain <- lme4::lmer(pay ~ age + (1 | site), people)
  expect_lt(max(abs(ranef(fit)$site[, 1] - lme4::ranef(plain)$site[, 1]) / attr(ranef(fit)$site, "sd")[, 1]), 4)
  expect_identical(rownames(ranef(fit)$site), rownames(lme4::ranef(plain)$site))
})

test_that("persons with many rows have effects, which are not released", {
  fit <- private(pay ~ age + (1 | village), unit = dp_unit("village", 20), n_records = 200)
  expect_identical(names(fixef(fit)), c("(Intercept)", "age"))
  expect_identical(VarCorr(fit)$grp, c("village", "Residual"))
  expect_match(told(fit), "all rows of one village")
  expect_error(ranef(fit), "not released", class = "dpinfer_argument")
})

test_that("target, quasi families and a horseshoe are Python's", {
  expect_identical(private(pay ~ age, target = "model")$target, "model")
  expect_identical(private(rich ~ age, family = quasibinomial())$target, "population")
  expect_match(told(private(pay ~ age + w + site, prior = "horseshoe")), "horseshoe")
  expect_error(private(pay ~ age, target = "none"), "target must be one of", class = "dpinfer_argument")
})

test_that("a subset is fitted, and na.action is the schema's policy", {
  fit <- private(pay ~ age, subset = age > 40 & region == "north", n_records = 1300)
  plain <- lm(pay ~ age, people, subset = age > 40 & region == "north")
  expect_true(all(abs(coef(fit) - coef(plain)) < 6 * sqrt(diag(vcov(fit)))))
  gaps <- people
  gaps$age[1:5] <- NA
  expect_error(private(pay ~ age, data = gaps, na.action = na.fail), "lacks a value", class = "dpinfer_error")
  expect_equal(private(pay ~ age, data = gaps, na.action = "na.omit")$n_records, 4000)
  expect_error(private(pay ~ age, na.action = na.pass), "na.action must be", class = "dpinfer_argument")
  path <- tempfile(fileext = ".csv")
  utils::write.csv(people, path, row.names = FALSE)
  expect_error(private(pay ~ age, data = path, subset = age > 20), "subset must be NULL", class = "dpinfer_argument")
  expect_s3_class(private(pay ~ age, data = path, weights = w), "dp_glm")
})

test_that("update() runs the changed call, and anova() adds terms one by one", {
  fit <- private(pay ~ age + region)
  more <- dp_glm(pay ~ age + region, people, schema, epsilon = 3, delta = 1e-6, n_records = 4000)
  changed <- update(more, . ~ . - region + site, epsilon = 5, evaluate = FALSE)
  expect_equal(changed$formula, pay ~ age + site, ignore_formula_env = TRUE)
  expect_equal(changed$epsilon, 5)
  expect_identical(update(more, pay ~ age)$labels, "age")
  mixed <- dp_glm(pay ~ age + (1 | site), people, schema, epsilon = 3, delta = 1e-6, n_records = 4000)
  expect_match(update(mixed, . ~ . + region)$text, "(1 | site)", fixed = TRUE)
  table <- anova(more)
  expect_identical(rownames(table), c("age", "region"))
  # Of normal errors the sequential tests add up to the joint one, and the last is that of drop1().
  joint <- dpinfer:::without(more, c("age", "region"))$wald
  expect_equal(sum(table$Chisq), joint)
  expect_equal(table["region", "Chisq"], drop1(more)["region", "Wald"])
  both <- anova(private(pay ~ age), more)
  expect_equal(both$Chisq, drop1(more)["region", "Wald"])
  expect_error(anova(private(pay ~ age), private(pay ~ region)), "all in the largest", class = "dpinfer_argument")
  plain <- stats::anova(stats::lm(pay ~ age + region, people))
  sharp <- anova(private(pay ~ age + region, epsilon = 200, target = "model"))
  # One degree of freedom: F is chi-squared, to the noise that is left.
  expect_equal(sharp["age", "Chisq"], plain["age", "F value"], tolerance = 0.1)
  folder <- tempfile()
  dp_save(fit, folder)
  expect_error(update(dp_load(folder)), "no call", class = "dpinfer_argument")
})

test_that("broom's three verbs have broom's columns", {
  fit <- private(pay ~ age + region)
  expect_named(glance(fit), c("sigma", "df", "epsilon", "delta", "method", "target", "n_records", "nobs"))
  expect_identical(nrow(glance(fit)), 1L)
  new <- people[1:3, c("age", "region")]
  expect_named(augment(fit, newdata = new, interval = "confidence"),
    c("age", "region", ".fitted", ".lower", ".upper", ".se.fit"))
  expect_equal(augment(fit, newdata = new)$.fitted, unname(predict(fit, new)))
  expect_error(augment(fit), "newdata", class = "dpinfer_argument")
  expect_error(augment(fit, people), "newdata", class = "dpinfer_argument")
  expect_named(glance(private(rich ~ age, family = binomial())),
    c("df", "epsilon", "delta", "method", "target", "n_records", "nobs"))
  skip_if_not_installed("tibble")
  expect_s3_class(tidy(fit), "tbl_df")
  skip_if_not_installed("broom")
  expect_identical(broom::tidy(fit), tidy(fit))
  expect_true(all(c("term", "estimate", "std.error") %in% names(broom::tidy(fit))))
})

test_that("treatment contrasts are said where glm() would have others", {
  ordered <- private(pay ~ grade)
  expect_identical(names(coef(ordered)), c("(Intercept)", "grademid", "gradehigh"))
  expect_match(told(ordered), "grade has treatment contrasts with low, where glm\\(\\) would have polynomial ones")
  few <- structure(list(table = schema$table, columns = schema$columns[c("pay", "grade")]), class = "dp_schema")
  every <- dp_glm(pay ~ ., people, few, epsilon = 3, delta = 1e-6, n_records = 4000)
  expect_match(told(every), "grade has treatment contrasts")
  expect_false(grepl("treatment contrasts", told(private(pay ~ region))))
  summed <- people
  contrasts(summed$site) <- stats::contr.sum(12)
  expect_match(told(private(pay ~ site, data = summed)), "site has treatment contrasts")
  old <- options(contrasts = c("contr.sum", "contr.poly"))
  on.exit(options(old))
  expect_match(told(private(pay ~ region)), "region has treatment contrasts with north")
})

test_that("a summary has the verdict, remarks of rows, and the records that are used and declared", {
  fit <- private(pay ~ age)
  text <- told(fit)
  expect_match(text, sprintf("about %.0f used, 4000 declared", nobs(fit)))
  expect_match(text, "Records: about .* used \\(privacy noise")
  # The noise is below 100 at this budget: 4000 +- 6 of them.
  expect_lt(abs(nobs(fit) - 4000), 600)
  gaps <- people
  gaps$age[1:2000] <- NA
  half <- private(pay ~ age, data = gaps)
  expect_match(told(half), "The run used about [0-9]+ records .*n_records says 4000")
  expect_lt(abs(nobs(half) - 2000), 600)
  expect_equal(glance(half)$n_records, 4000)
  expect_match(text, "Intervals are robust")
  expect_match(text, "sigma: spread of the residuals")
  expect_match(text, "Width over that without privacy")
  poor <- private(pay ~ site, epsilon = 0.01, target = "model")
  expect_match(told(poor), "the prior dominates")
})

test_that("tibbles and data.tables are data frames", {
  age <- coef(private(pay ~ age, epsilon = 1e4))[["age"]]
  skip_if_not_installed("tibble")
  expect_equal(coef(private(pay ~ age, data = tibble::as_tibble(people), epsilon = 1e4))[["age"]], age, tolerance = 0.01)
  skip_if_not_installed("data.table")
  table <- data.table::as.data.table(people)
  expect_equal(coef(private(pay ~ age, data = table, epsilon = 1e4, subset = age > 0))[["age"]], age, tolerance = 0.01)
  expect_named(predict(private(pay ~ age), table[1:2, ]), c("1", "2"))
})

test_that("classes of columns count before the charge", {
  account <- dp_ledger(tempfile(), "people", epsilon = 4, delta = 1e-4)
  dated <- transform(people, age = as.Date("2020-01-01"))
  expect_error(private(pay ~ age, data = dated, ledger = account), "column 'age'", class = "dpinfer_argument")
  path <- tempfile(fileext = ".toml")
  writeLines(c("[columns.age]", "kind = \"continuous\"", "bounds = [17, 90]", "[columns.pay]", "kind = \"continuous\"",
    "bounds = [-20, 80]"), path)
  expect_error(dp_glm(pay ~ age, dated, path, 3, 1e-6, n_records = 4000, ledger = account), "column 'age'")
  expect_output(print(account), "people: 0 runs")
  whole <- people
  bits <- as.vector(vapply(round(people$age), function(age) as.raw(c(age, 0, 0, 0, 0, 0, 0, 0)), raw(8)))
  whole$age <- structure(readBin(bits, "double", nrow(people), endian = "little"), class = "integer64")
  found <- coef(private(pay ~ age, data = whole, epsilon = 1e4))[["age"]]
  expect_equal(found, coef(lm(pay ~ round(age), people))[[2]], tolerance = 0.02)
  coded <- people
  coded$age[1:2000] <- 99
  coded$age <- structure(coded$age, na_values = 99, class = c("haven_labelled_spss", "haven_labelled", "vctrs_vctr", "double"))
  found <- coef(private(pay ~ age, data = coded, epsilon = 1e4, n_records = 2000))[["age"]]
  expect_equal(found, coef(lm(pay ~ age, people[2001:4000, ]))[[2]], tolerance = 0.02)
})

test_that("numbers of records beyond R's integers are told with all of their digits", {
  fit <- dp_glm(pay ~ age, people, schema, epsilon = 3, delta = 1e-12, n_records = 2^31)
  expect_equal(fit$n_records, 2^31)
  expect_match(told(fit), "2147483648 declared")
  expect_output(print(fit), "2147483648")
  expect_error(private(pay ~ age, n_records = 2^40), "n_records must be at most 2147483648", class = "dpinfer_argument")
  bits <- readBin(as.raw(c(0, 0, 0, 128, 0, 0, 0, 0)), "double", endian = "little")
  expect_equal(dpinfer:::check_number(structure(bits, class = "integer64"), "n_records"), 2^31)
})

test_that("R's short truth values, relevel() and packages' names are read", {
  expect_identical(dpinfer:::formula_text(y ~ poly(x, 2, raw = T)), "y ~ poly(x, 2, raw=True)")
  expect_identical(dpinfer:::formula_text(y ~ T, "T"), "y ~ T")
  expect_identical(dpinfer:::formula_text(y ~ relevel(job, ref = "cook")), "y ~ C(job, base=\"cook\")")
  expect_identical(dpinfer:::formula_text(y ~ splines::bs(x, df = 5)), "y ~ bs(x, df=5)")
  expect_identical(dpinfer:::formula_text(y ~ (1 + x || g)), "y ~ (1 + x || g)")
  expect_identical(dpinfer:::formula_text(y ~ I(x * 0.1)), "y ~ I(x * 0.1)")
  for (formula in list(y ~ ordered(g), cbind(a, b) ~ x, y ~ x | g, bquote(y ~ .(1:3)), y ~ (function(x) x)(x))) {
    expect_error(dpinfer:::formula_text(stats::as.formula(formula)), class = "dpinfer_argument")
  }
})

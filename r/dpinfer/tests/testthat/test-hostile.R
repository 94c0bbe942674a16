skip_if_not(dp_available(), "Python with dpinfer is not found")

size <- 400
secret <- "Zyx Canary, 5551234"
# Columns of any class, some of which hold a text that no message may quote.
odd <- function() {
  set.seed(6)
  number <- runif(size, 0, 10)
  text <- sample(c("a", "b", secret), size, TRUE)
  list(
    number = number, whole = as.integer(number), truth = number > 5, text = text, factor = factor(text),
    ordered = factor(text, ordered = TRUE), missing = rep(NA, size), missing_number = rep(NA_real_, size),
    infinite = ifelse(number > 9, Inf, number), not_a_number = ifelse(number > 9, NaN, number), huge = number * 1e308,
    tiny = number * 5e-324, one = rep(3, size), texts_of_numbers = as.character(number), comma = sub("\\.", ",", number),
    empty = rep("", size), bytes = rep("\xff\xfe", size), long = rep(strrep("x", 1e4), size),
    latin = iconv(rep("caf\u00e9", size), "UTF-8", "latin1"), quoted = rep("\"'`\\\n\t", size), emoji = rep("\U1F600", size),
    date = as.Date("2020-01-01") + seq_len(size), time = as.POSIXct("2020-01-01", tz = "UTC") + seq_len(size),
    lasting = as.difftime(number, units = "hours"), complex = complex(real = number), raw = as.raw(seq_len(size) %% 256),
    list = as.list(number), nested = I(lapply(seq_len(size), function(k) list(k))), matrix = matrix(number, size, 1),
    as_is = I(number), scaled = scale(number), rounded = structure(number, class = "numeric_version_like"),
    hidden = structure(number, class = c("labelled", "numeric"), label = secret),
    spss = structure(number, class = c("haven_labelled_spss", "haven_labelled", "vctrs_vctr", "double"), na_range = c(9, 10)),
    integer64 = structure(number, class = "integer64"), called = structure(number, names = text),
    attributed = structure(number, comment = secret), noquote = noquote(text), factor_of_numbers = factor(round(number)),
    unused = factor(rep("a", size), c("a", "b", secret)), levels_lost = structure(1:2, levels = c("a", "b"))[rep(1:2, size / 2)]
  )
}
kinds <- list(continuous = dp_continuous(0, 10), categorical = dp_categorical(c("a", "b"), other = "b"),
  binary = dp_binary("a", "b"), ignored = dp_ignored(), strict = dp_categorical(c("a", "b")))

test_that("any column in any part is read, or refused in the library's words, and no message quotes a record", {
  columns <- odd()
  account <- dp_ledger(tempfile(), "odd", epsilon = 1e6, delta = 0.5)
  runs <- function() dpinfer:::ask("spent", path = account$path, dataset = account$dataset)$runs
  calls <- expression(
    dp_glm(y ~ x, table, schema, 1, 1e-6, n_records = size, ledger = account),
    dp_glm(y ~ z, table, schema, 1, 1e-6, n_records = size, ledger = account, clusters = x),
    dp_glm(y ~ z, table, schema, 1, 1e-6, n_records = size, ledger = account, subset = x == "a"),
    dp_glm(y ~ z, table, schema, 1, 1e-6, n_records = size, ledger = account, weights = x)
  )
  cells <- expand.grid(column = names(columns), kind = names(kinds), call = seq_along(calls), stringsAsFactors = FALSE)
  # A column that is ignored can only name clusters, or be in a condition; weights are numbers.
  fits <- ifelse(cells$kind == "ignored", cells$call %in% 2:3, cells$call < 3 | cells$kind == "continuous")
  cells <- cells[fits, ]
  # All take minutes: DPINFER_DEEP=1.  Without it, other ones in each run.
  deep <- nzchar(Sys.getenv("DPINFER_DEEP"))
  set.seed(if (deep) 1 else NULL)
  if (!deep) cells <- cells[sample(nrow(cells), 40), ]
  done <- 0
  for (place in seq_len(nrow(cells))) {
    cell <- cells[place, ]
    table <- data.frame(y = runif(size, 0, 10), z = runif(size, 0, 10))
    table$x <- columns[[cell$column]]
    schema <- dp_schema(x = kinds[[cell$kind]], y = dp_continuous(0, 10), z = dp_continuous(0, 10))
    before <- runs()
    found <- withCallingHandlers(tryCatch(eval(calls[[cell$call]]), error = identity), warning = function(told) {
      expect_false(grepl("Canary|555123", conditionMessage(told)))
      invokeRestart("muffleWarning")
    })
    name <- paste(unlist(cell), collapse = ", ")
    expect_true(inherits(found, c("dp_glm", "dpinfer_error")), label = name)
    if (inherits(found, "dpinfer_error")) {
      expect_false(grepl("Canary|555123|withheld", conditionMessage(found)), label = name)
      # What a class tells is refused before the charge.
      if (grepl("data must not have", conditionMessage(found))) expect_identical(runs(), before, label = name)
    }
    done <- done + inherits(found, "dp_glm")
  }
  expect_gt(done, if (deep) 150 else 3)
})

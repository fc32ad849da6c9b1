# Golden values of Holt-Winters. Run from this directory with R 4 and jsonlite:
#   Rscript make_hw.R > holtwinters.json
# The series are R's datasets AirPassengers, co2 and UKgas.
suppressMessages(library(jsonlite))
one <- function(name, x, seasonal) {
  f <- HoltWinters(x, seasonal = seasonal, optim.control = list(factr = 10, pgtol = 0, ndeps = rep(1e-6, 3)))
  list(
    name = name, seasonal = seasonal, period = frequency(x), values = as.numeric(x),
    alpha = unname(f$alpha), beta = unname(f$beta), gamma = unname(f$gamma), sse = f$SSE,
    level = unname(f$coefficients["a"]), trend = unname(f$coefficients["b"]),
    forecast = as.numeric(predict(f, 2 * frequency(x)))
  )
}
cases <- list(
  one("AirPassengers", AirPassengers, "additive"),
  one("AirPassengers", AirPassengers, "multiplicative"),
  one("co2", co2, "additive"),
  one("UKgas", UKgas, "additive"),
  one("UKgas", UKgas, "multiplicative")
)
cat(toJSON(cases, auto_unbox = TRUE, digits = 10), "\n")

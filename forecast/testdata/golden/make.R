# Golden values of ARIMA models from R: Rscript make.R, in this folder, writes
# arima.json (fits by exact maximum likelihood and their forecasts) and order.json
# (differences and orders that auto.arima chooses). Made with R 4.2.2 and forecast
# 8.20. make.py adds what statsmodels finds on the same series.
suppressMessages({library(forecast); library(jsonlite)})
set.seed(20240613)

ar2 <- function(n, ...) round(100 + 5 * arima.sim(list(...), n), 3)
seasonal <- {
  e <- rnorm(400)
  w <- numeric(400)
  for (t in 30:400) w[t] <- 0.5 * w[t - 1] + 0.6 * w[t - 24] - 0.3 * w[t - 25] + e[t] + 0.4 * e[t - 1]
  round(200 + 3 * w[101:400], 3)
}
dog <- as.numeric(arima.sim(list(ar = 0.7), 250))
x1 <- round(rnorm(250), 3)
x2 <- round(cumsum(rnorm(250)) / 5, 3)
withx <- round(50 + 3 * x1 - 2 * x2 + 2 * dog, 3)
holes <- function(y, at) { y <- as.numeric(y); y[at] <- NA; y }

series <- list(
  airpassengers = list(y = as.numeric(AirPassengers), season = 12),
  logair = list(y = round(log(as.numeric(AirPassengers)), 6), season = 12),
  nile = list(y = as.numeric(Nile), season = 1),
  arma21 = list(y = ar2(300, ar = c(1.2, -0.5), ma = 0.5), season = 1),
  arima111 = list(y = round(cumsum(arima.sim(list(ar = 0.6, ma = -0.3), 300)), 3), season = 1),
  drift = list(y = round(cumsum(0.5 + arima.sim(list(ma = 0.4), 200)), 3), season = 1),
  seasonal = list(y = seasonal, season = 24),
  withx = list(y = withx, season = 1, x = list(x1, x2)),
  holes = list(y = holes(ar2(200, ar = 0.8, ma = -0.2), c(5, 40:49, 120, 122, 199)), season = 1),
  holesdiff = list(y = holes(round(cumsum(arima.sim(list(ma = 0.5), 200)), 3), c(17, 60:75, 150)), season = 1),
  holesseasonal = list(y = holes(round(log(as.numeric(AirPassengers)), 6), c(20, 77:80, 130)), season = 12)
)

models <- list(
  list("airpassengers", c(2, 1, 1), c(0, 1, 0), FALSE),
  list("logair", c(0, 1, 1), c(0, 1, 1), FALSE),
  list("logair", c(1, 0, 1), c(1, 1, 1), FALSE),
  list("logair", c(2, 0, 0), c(0, 1, 1), TRUE),
  list("nile", c(1, 0, 1), c(0, 0, 0), TRUE),
  list("nile", c(0, 1, 1), c(0, 0, 0), FALSE),
  list("nile", c(0, 0, 0), c(0, 0, 0), TRUE),
  list("arma21", c(2, 0, 1), c(0, 0, 0), TRUE),
  list("arma21", c(3, 1, 2), c(0, 0, 0), FALSE),
  list("arima111", c(1, 1, 1), c(0, 0, 0), FALSE),
  list("arima111", c(0, 2, 2), c(0, 0, 0), FALSE),
  list("drift", c(0, 1, 1), c(0, 0, 0), TRUE),
  list("seasonal", c(1, 0, 1), c(1, 0, 0), TRUE),
  list("seasonal", c(1, 0, 1), c(1, 0, 1), TRUE),
  list("withx", c(1, 0, 0), c(0, 0, 0), TRUE),
  list("withx", c(1, 1, 1), c(0, 0, 0), FALSE),
  list("holes", c(1, 0, 1), c(0, 0, 0), TRUE),
  list("holesdiff", c(0, 1, 1), c(0, 0, 0), FALSE),
  list("holesdiff", c(1, 1, 1), c(0, 0, 0), TRUE),
  list("holesseasonal", c(0, 1, 1), c(0, 1, 1), FALSE)
)

horizon <- 15
fits <- lapply(models, function(m) {
  s <- series[[m[[1]]]]
  y <- ts(s$y, frequency = s$season)
  n <- length(y)
  cols <- NULL
  ahead <- NULL
  if (m[[4]] && m[[2]][2] + m[[3]][2] == 1) {
    cols <- cbind(drift = 1:n)
    ahead <- cbind(drift = n + 1:horizon)
  }
  if (!is.null(s$x)) {
    x <- do.call(cbind, s$x)
    colnames(x) <- paste0("x", seq_along(s$x))
    cols <- cbind(cols, x)
    ahead <- cbind(ahead, x[1:horizon, , drop = FALSE])
  }
  mean <- m[[4]] && m[[2]][2] + m[[3]][2] == 0
  fit <- function(...) stats::arima(y, m[[2]], list(order = m[[3]], period = s$season), xreg = cols, include.mean = mean, method = "ML", ...)
  f <- fit(optim.control = list(maxit = 500))
  for (control in list(list(reltol = 1e-12, maxit = 1000), list(reltol = 1e-15, maxit = 2000))) {
    closer <- tryCatch(fit(init = coef(f), optim.control = control), error = function(e) f)
    if (closer$loglik >= f$loglik) f <- closer
  }
  p <- predict(f, horizon, newxreg = ahead)
  list(series = m[[1]], order = m[[2]], seasonal = m[[3]], season = s$season, constant = m[[4]],
       coef = as.list(coef(f)), sigma2 = f$sigma2, loglik = f$loglik, aic = AIC(f), bic = AIC(f, k = log(f$nobs)),
       mean = as.numeric(p$pred), se = as.numeric(p$se))
})
write_json(list(series = series, fits = fits), "arima.json", auto_unbox = TRUE, digits = 10, na = "null")

strength <- function(y) {
  m <- mstl(y)
  r <- m[, "Remainder"]
  max(0, 1 - var(r) / var(r + m[, 3]))
}
orders <- lapply(c("airpassengers", "logair", "nile", "arma21", "arima111", "drift", "seasonal", "withx"), function(name) {
  s <- series[[name]]
  y <- ts(s$y, frequency = s$season)
  x <- if (is.null(s$x)) NULL else do.call(cbind, s$x)
  f <- auto.arima(y, xreg = x, approximation = FALSE)
  g <- auto.arima(y, xreg = x)
  list(series = name, kpss = ur <- urca::ur.kpss(as.numeric(y), type = "mu", use.lag = trunc(3 * sqrt(length(y)) / 13))@teststat[1],
       ndiffs = ndiffs(y), nsdiffs = if (s$season > 1) nsdiffs(y) else 0, strength = if (s$season > 1) strength(y) else 0,
       order = arimaorder(f), aicc = f$aicc, approximate = arimaorder(g), approximate_aicc = g$aicc)
})
write_json(orders, "order.json", auto_unbox = TRUE, digits = 10)

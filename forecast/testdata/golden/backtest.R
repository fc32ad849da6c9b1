# Backtests R's auto.arima on a week of prompt tokens by minute, on the windows of
# `skyserve forecast --backtest --origin-step 6h --horizon 1h`: origins every six
# hours from the second day on, each forecast made from what came before it.
#
#   Rscript backtest.R FILE.csv.gz [METHOD...]
#
# FILE has the columns minute, model, tier and prompt_tokens; a minute without a
# row had no traffic. A method is one of
#   minute      auto.arima on the last day's minutes, without a season
#   ten         auto.arima on 10-minute means, without a season
#   fifteen     the same on 15-minute means
#   fourier     auto.arima on 10-minute means with K Fourier terms of the day,
#               K = 1..6 by AICc
#   fourier15   the same on 15-minute means
# and all of them by default. It prints the WAPE by series and method, over all
# windows and over those from the third day on, and the mean seconds of a forecast.
suppressMessages(library(forecast))

args <- commandArgs(trailingOnly = TRUE)
methods <- if (length(args) > 1) args[-1] else c("minute", "ten", "fifteen", "fourier", "fourier15")
data <- read.csv(gzfile(args[1]))
day <- 1440
horizon <- 60

means <- function(y, each) {
  n <- length(y) %/% each
  colMeans(matrix(tail(y, n * each), each))
}

spread <- function(f, each) rep(as.numeric(f), each = each)[1:horizon]

plain <- function(y, each) spread(forecast(auto.arima(ts(means(y, each)), seasonal = FALSE), ceiling(horizon / each))$mean, each)

withFourier <- function(y, each) {
  m <- ts(means(y, each), frequency = day / each)
  best <- NULL
  for (k in 1:6) {
    x <- fourier(m, K = k)
    f <- tryCatch(auto.arima(m, xreg = x, seasonal = FALSE), error = function(e) NULL)
    if (!is.null(f) && (is.null(best) || f$aicc < best$aicc)) { best <- f; terms <- k }
  }
  if (is.null(best)) return(plain(y, each))
  h <- ceiling(horizon / each)
  spread(forecast(best, xreg = fourier(m, K = terms, h = h))$mean, each)
}

run <- list(
  minute = function(y) forecast(auto.arima(ts(tail(y, day)), seasonal = FALSE), horizon)$mean,
  ten = function(y) plain(y, 10),
  fifteen = function(y) plain(y, 15),
  fourier = function(y) withFourier(y, 10),
  fourier15 = function(y) withFourier(y, 15)
)

for (model in unique(data$model)) for (tier in unique(data$tier)) {
  rows <- data[data$model == model & data$tier == tier, ]
  if (nrow(rows) == 0) next
  y <- numeric(max(data$minute) + 1)
  y[rows$minute + 1] <- rows$prompt_tokens
  origins <- seq(day, length(y) - horizon, by = 360)
  for (method in methods) {
    off <- numeric(length(origins))
    actual <- numeric(length(origins))
    took <- system.time(for (i in seq_along(origins)) {
      o <- origins[i]
      came <- y[o + 1:horizon]
      off[i] <- sum(abs(came - pmax(0, as.numeric(run[[method]](y[1:o])))))
      actual[i] <- sum(came)
    })
    late <- origins > 2 * day
    cat(sprintf("%s %-4s %-10s WAPE %.1f%%  from the third day %.1f%%  %.2f s a forecast\n", model, tier, method, 100 * sum(off) / sum(actual),
                100 * sum(off[late]) / sum(actual[late]), took[["user.self"]] / length(origins)))
  }
}

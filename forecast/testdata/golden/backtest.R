# Backtests R's auto.arima on the windows of `make compare-forecast`: the next hour
# from every hour from the second day on, each forecast made from what came before
# it. It prints a table, kept as backtest.csv, by series and method: the WAPE over
# all windows, over those of every sixth origin, and the mean seconds of a forecast.
#
#   Rscript backtest.R WEEK.csv.gz RATES.csv.gz > backtest.csv
#
# WEEK has the columns minute, model, tier and prompt_tokens; a minute without a row
# had no traffic. RATES has model, t_s and rate_rps or total_rps; the rows of a model
# and time add up. The methods, each without a seasonal part:
#   day         auto.arima on the last day's steps
#   ten         auto.arima on 10-minute means of all that came before
#   fifteen     the same on 15-minute means, where the steps divide them
suppressMessages(library(forecast))

means <- function(y, each) {
  n <- length(y) %/% each
  colMeans(matrix(tail(y, n * each), each))
}

# A series knows its values y and the minutes of a step.
plain <- function(y, step, minutes) {
  each <- minutes / step
  ahead <- 60 / minutes
  rep(as.numeric(forecast(auto.arima(ts(means(y, each)), seasonal = FALSE), ahead)$mean), each = each)
}

methods <- list(
  day = function(y, step) forecast(auto.arima(ts(tail(y, 1440 / step)), seasonal = FALSE), 60 / step)$mean,
  ten = function(y, step) plain(y, step, 10),
  fifteen = function(y, step) if (15 %% step == 0) plain(y, step, 15) else NULL
)

backtest <- function(name, method, y, step) {
  day <- 1440 / step
  hour <- 60 / step
  if (is.null(methods[[method]](y[1:day], step))) return(invisible())
  origins <- seq(day, length(y) - hour, by = hour)
  off <- actual <- numeric(length(origins))
  took <- system.time(for (i in seq_along(origins)) {
    came <- y[origins[i] + 1:hour]
    off[i] <- sum(abs(came - pmax(0, as.numeric(methods[[method]](y[1:origins[i]], step)))))
    actual[i] <- sum(came)
  })
  sixth <- seq(1, length(origins), by = 6)
  cat(sprintf("%s,%s,%d,%.6f,%.6f,%.3f\n", name, method, length(origins), sum(off) / sum(actual), sum(off[sixth]) / sum(actual[sixth]), took[["user.self"]] / length(origins)))
}

args <- commandArgs(trailingOnly = TRUE)
week <- read.csv(gzfile(args[1]))
rates <- read.csv(gzfile(args[2]))
names(rates)[names(rates) == "total_rps"] <- "rate_rps"
cat("series,method,windows,wape,wape_every_6_hours,seconds\n")
for (method in names(methods)) {
  for (model in sort(unique(week$model))) for (tier in sort(unique(week$tier))) {
    rows <- week[week$model == model & week$tier == tier, ]
    y <- numeric(max(week$minute) + 1)
    y[rows$minute + 1] <- rows$prompt_tokens
    backtest(paste(model, tier), method, y, 1)
  }
  for (model in sort(unique(rates$model))) {
    rows <- rates[rates$model == model, ]
    y <- numeric(max(rates$t_s) / 600 + 1)
    sums <- tapply(rows$rate_rps, rows$t_s, sum)
    y[as.numeric(names(sums)) / 600 + 1] <- sums
    backtest(model, method, y, 10)
  }
}

package forecast

// tailShare is the share of errors at each end whose correlation is learned: those beyond a 90 % interval.
const tailShare = 0.05

// learnCorrelation sets the correlation of large errors of one period. If the errors of a period are large together,
// they are less evidence than as many errors of different periods: six hours ahead, one busy afternoon is in the errors
// of six forecasts. The correlation is the mean, at least 0, of two intraclass correlations: of being among the
// highest tailShare errors, and of being among the lowest.
func (c *calibration) learnCorrelation() {
	n := len(c.byError)
	tail := int(tailShare * float64(n))
	if tail == 0 {
		return
	}
	for _, o := range c.outcomes {
		c.periods = max(c.periods, o.period+1)
	}
	c.correlation = max(0, (c.tailCorrelation(0, tail)+c.tailCorrelation(n-tail, n))/2)
	if c.correlation == 0 {
		c.periods = 0
	}
}

// tailCorrelation returns the correlation, over all pairs of outcomes of one period, of having an error whose rank is
// from..to-1.
func (c *calibration) tailCorrelation(from, to int) float64 {
	count, hits := make([]float64, c.periods), make([]float64, c.periods)
	for rank, e := range c.byError {
		period := c.outcomes[e.outcome].period
		count[period]++
		if rank >= from && rank < to {
			hits[period]++
		}
	}
	p := float64(to-from) / float64(len(c.byError))
	var covariance, pairs float64
	for i, m := range count {
		off := hits[i] - p*m
		covariance += off*off - hits[i]*(1-p)*(1-p) - (m-hits[i])*p*p
		pairs += m * (m - 1)
	}
	if pairs == 0 {
		return 0
	}
	return covariance / pairs / (p * (1 - p))
}

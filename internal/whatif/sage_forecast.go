package whatif

import (
	"sync"
	"time"

	"skyserve/forecast"
)

// recalled remembers what a forecaster said of the series of one seed, told apart by
// their names and lengths. What was asked does not depend on how replicas are
// scaled, so that every strategy sees the same past, and what is expected of it
// has to be computed once.
type recalled struct {
	forecast.Forecaster
	mu    sync.Mutex
	known map[past]func() (forecast.Forecast, error)
}

// past is a series up to a time, and for how many steps it is continued.
type past struct {
	name           string
	steps, horizon int
}

// firstHours is how long a past the mean of its last hour stands for: less than
// ARIMA can learn from, which wants 20 steps of 10 minutes.
const firstHours = 4 * time.Hour

func newRecalled(f forecast.Forecaster) *recalled {
	return &recalled{Forecaster: f, known: map[past]func() (forecast.Forecast, error){}}
}

// Forecast implements forecast.Forecaster; several runs may ask at once.
func (r *recalled) Forecast(s forecast.Series, horizon int) (forecast.Forecast, error) {
	of := past{s.Name, len(s.Values), horizon}
	r.mu.Lock()
	made := r.known[of]
	if made == nil {
		by := r.Forecaster
		if time.Duration(len(s.Values))*s.Step < firstHours {
			by = forecast.MovingAverage()
		}
		made = sync.OnceValues(func() (forecast.Forecast, error) { return by.Forecast(s, horizon) })
		r.known[of] = made
	}
	r.mu.Unlock()
	return made()
}

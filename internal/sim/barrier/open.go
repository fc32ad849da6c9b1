package barrier

// Drift returns the mean of Growth in tokens per step, or 1 if it is empty.
func (s *Scenario) Drift() float64 {
	if len(s.Growth) == 0 {
		return 1
	}
	sum := int64(0)
	for _, tokens := range s.Growth {
		sum += tokens
	}
	return float64(sum) / float64(len(s.Growth))
}

// arrive adds the requests that have arrived by now. An empty fleet idles until the next request.
func (s *Sim) arrive() {
	if s.counts.Active+s.counts.Waiting == 0 && s.due > s.clock {
		s.idle(s.due - s.clock)
		s.clock = s.due
	}
	for s.due <= s.clock {
		s.addRequest(s.due)
		s.due += s.rng.ExpFloat64() / s.scenario.Rate
	}
}

// idle accounts for seconds in which no worker has a request.
func (s *Sim) idle(seconds float64) {
	if s.measured() {
		joules := seconds * idleWatts * float64(s.scenario.Workers)
		s.figures.Seconds += seconds
		s.figures.Linear += joules
		s.figures.Sublinear += joules
	}
}

// Waits returns the wait in seconds, from arrival to start, of the requests that started during the
// measurement, followed by the wait so far of those still waiting.
func (s *Sim) Waits() []float64 {
	waits := append([]float64(nil), s.waits...)
	for _, queue := range append([][]request{s.queue}, s.bound...) {
		for _, r := range queue {
			waits = append(waits, s.clock-r.came)
		}
	}
	return waits
}

// observeQueues adds the prompts in each worker's own queue, which stay for the whole window, to its
// observed load, and provides places in the queues: free slots first, then as few more per worker as
// needed for all jobs.
func (s *Sim) observeQueues() {
	free := 0
	for g := range s.instance.Workers {
		w := &s.instance.Workers[g]
		queued := int64(0)
		for _, r := range s.bound[g] {
			queued += r.tokens
		}
		w.Load += queued
		for h := range w.Future {
			w.Future[h] += queued
		}
		w.Free -= len(s.bound[g])
		free += max(w.Free, 0)
	}
	for free < len(s.instance.Jobs) {
		free = 0
		for g := range s.instance.Workers {
			s.instance.Workers[g].Free++
			free += max(s.instance.Workers[g].Free, 0)
		}
	}
}

// startBound starts the oldest requests in each worker's own queue while it has slots.
func (s *Sim) startBound() {
	for g := range s.bound {
		n := min(len(s.bound[g]), s.scenario.Slots-len(s.active[g]))
		for _, r := range s.bound[g] {
			s.recordWait(r)
		}
		for _, r := range s.bound[g][:n] {
			s.start(g, r)
		}
		s.bound[g] = append(s.bound[g][:0], s.bound[g][n:]...)
	}
}

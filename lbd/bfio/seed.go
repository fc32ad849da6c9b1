package bfio

// seed places the oldest jobs, longest-lived and largest first, each on the worker with a
// free slot that has the lowest weighted load: Graham's LPT rule.
func (s *Solver) seed() {
	for at := len(s.pool) - 1; at >= 0; at-- {
		rank := s.pool[at]
		if int(rank) >= s.placed {
			continue
		}
		worker := s.lightest()
		s.freeSlots[worker]--
		s.score[worker] += s.weight(rank)
		s.addJob(s.row(worker), rank, 1)
		s.waiting.clearBit(int32(at))
		s.slots = append(s.slots, slot{rank: rank, worker: worker})
	}
	s.findTopLoads()
}

// lightest returns the worker with a free slot that has the lowest weighted load.
func (s *Solver) lightest() int32 {
	best := -1
	for k, score := range s.score {
		if s.freeSlots[k] > 0 && (best < 0 || score < s.score[best]) {
			best = k
		}
	}
	return int32(best)
}

// weight returns the job's weighted load over the window.
func (s *Solver) weight(rank int32) float64 {
	job := s.jobs[rank]
	sum := 0.0
	for h := range int(job.life) {
		sum += s.weights[h] * (job.size + s.drift[h])
	}
	return sum
}

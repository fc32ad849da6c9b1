package bfio

// partner is what a slot's job can be exchanged for: another slot's job, or (slot < 0) a free slot
// of a worker.
type partner struct {
	slot   int
	worker int32
	gain   float64 // decrease of the weighted sum of the peaks, which is the decrease of J divided by the number of workers
}

// swapAll exchanges jobs between workers. The set of placed jobs, and thus the sum of the loads,
// stays the same. Only a lower peak is an improvement, so one of the two workers must have the
// peak load at some step.
func (s *Solver) swapAll() bool {
	changed := false
	for i := range s.slots {
		if !s.hasTopLoad(s.slots[i].worker) {
			continue
		}
		if p := s.bestPartner(i); p.gain > 0 {
			s.exchange(i, p)
			changed = true
		}
	}
	return changed
}

func (s *Solver) hasTopLoad(worker int32) bool {
	for h := range s.top {
		if t := &s.top[h]; t.worker[0] == worker || s.row(worker)[h] == t.load[0] {
			return true
		}
	}
	return false
}

// bestPartner returns the exchange of slot i with the highest gain; of equals, the first.
func (s *Solver) bestPartner(i int) partner {
	best := partner{slot: -1, gain: tolerance * s.weightedPeaks()}
	minGain := best.gain
	a := s.slots[i]
	s.boundGains()
	for k, b := range s.slots {
		if b.worker == a.worker || s.jobs[a.rank] == s.jobs[b.rank] {
			continue
		}
		if gain := s.swapGain(a.worker, b.worker, s.jobs[a.rank], s.jobs[b.rank], best.gain); gain > best.gain {
			best = partner{slot: k, worker: b.worker, gain: gain}
		}
	}
	for k, free := range s.freeSlots {
		if free == 0 || int32(k) == a.worker {
			continue
		}
		if gain := s.swapGain(a.worker, int32(k), s.jobs[a.rank], rankedJob{}, best.gain); gain > best.gain {
			best = partner{slot: -1, worker: int32(k), gain: gain}
		}
	}
	if best.gain == minGain {
		best.gain = 0
	}
	return best
}

// weightedPeaks returns the weighted sum of the absolute peak loads.
func (s *Solver) weightedPeaks() float64 {
	sum := 0.0
	for h := range s.top {
		sum += s.weights[h] * max(s.top[h].load[0], -s.top[h].load[0])
	}
	return sum
}

// boundGains sets maxGain[h] to the maximum gain of any swap from step h on: a swap changes two
// workers, so the peak cannot fall below the third highest load.
func (s *Solver) boundGains() {
	s.maxGain[s.steps] = 0
	for h := s.steps - 1; h >= 0; h-- {
		t := &s.top[h]
		s.maxGain[h] = s.maxGain[h+1] + s.weights[h]*(t.load[0]-t.load[2])
	}
}

// swapGain returns the decrease of the weighted sum of the peaks if workers p and q exchange their
// jobs a and b. A job with life 0 is a free slot. If the gain cannot exceed beat, swapGain returns
// a value of at most beat.
func (s *Solver) swapGain(p, q int32, a, b rankedJob, beat float64) float64 {
	rowP, rowQ := s.row(p), s.row(q)
	gain := 0.0
	for h := range s.top {
		if gain+s.maxGain[h] < beat {
			return gain + s.maxGain[h]
		}
		shift := 0.0
		if h < int(a.life) {
			shift = a.size + s.drift[h]
		}
		if h < int(b.life) {
			shift -= b.size + s.drift[h]
		}
		t := &s.top[h]
		peak := max(rowP[h]-shift, rowQ[h]+shift, t.highestWithout(p, q))
		gain += s.weights[h] * (t.load[0] - peak)
	}
	return gain
}

// exchange performs a swap or a move.
func (s *Solver) exchange(i int, p partner) {
	a := &s.slots[i]
	from, to := s.row(a.worker), s.row(p.worker)
	s.addJob(from, a.rank, -1)
	s.addJob(to, a.rank, 1)
	if p.slot >= 0 {
		b := &s.slots[p.slot]
		s.addJob(to, b.rank, -1)
		s.addJob(from, b.rank, 1)
		b.worker = a.worker
	} else {
		s.freeSlots[a.worker]++
		s.freeSlots[p.worker]--
	}
	s.updateTopLoads(a.worker)
	s.updateTopLoads(p.worker)
	a.worker = p.worker
}

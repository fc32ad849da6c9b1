package bfio

import "math"

// topLoads contains the three highest loads of one step and their workers (-1: none). With three,
// the highest load of all workers except any two is known, as a swap requires.
type topLoads struct {
	load   [3]float64
	worker [3]int32
}

var noTopLoads = topLoads{
	load:   [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)},
	worker: [3]int32{-1, -1, -1},
}

// insert adds a worker that is not among the three.
func (t *topLoads) insert(load float64, worker int32) {
	if load <= t.load[2] && t.worker[2] >= 0 {
		return
	}
	i := 2
	for ; i > 0 && (load > t.load[i-1] || t.worker[i-1] < 0); i-- {
		t.load[i], t.worker[i] = t.load[i-1], t.worker[i-1]
	}
	t.load[i], t.worker[i] = load, worker
}

// remove removes a worker and reports whether it was among the three.
func (t *topLoads) remove(worker int32) bool {
	i := 0
	for ; i < 3 && t.worker[i] != worker; i++ {
	}
	if i == 3 {
		return false
	}
	for ; i < 2; i++ {
		t.load[i], t.worker[i] = t.load[i+1], t.worker[i+1]
	}
	t.load[2], t.worker[2] = math.Inf(-1), -1
	return true
}

// highestWithout returns the highest load of all workers except two (which may be the same).
func (t *topLoads) highestWithout(a, b int32) float64 {
	for i := range 3 {
		if t.worker[i] != a && t.worker[i] != b {
			return t.load[i]
		}
	}
	return math.Inf(-1)
}

// findTopLoads computes the top loads of every step.
func (s *Solver) findTopLoads() {
	for h := range s.top {
		s.findTopLoadsAt(h)
	}
}

func (s *Solver) findTopLoadsAt(h int) {
	t := noTopLoads
	for k, at := int32(0), h; at < len(s.load); k, at = k+1, at+s.steps {
		t.insert(s.load[at], k)
	}
	s.top[h] = t
}

// updateTopLoads updates the top loads after one worker's load changed.
func (s *Solver) updateTopLoads(worker int32) {
	row := s.row(worker)
	for h := range row {
		t := &s.top[h]
		if !t.remove(worker) {
			t.insert(row[h], worker)
			continue
		}
		// The fourth highest load is unknown. As long as the worker's load stays above that of the
		// other two, or at least above the lower of them, no other worker can be among the three.
		if row[h] >= t.load[1] && t.worker[1] >= 0 {
			t.insert(row[h], worker)
			continue
		}
		s.findTopLoadsAt(h)
	}
}

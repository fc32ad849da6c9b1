package bfio

import "math"

// topLoads is the three highest loads of one step and whose they are (-1: nobody's).
// Three let a swap between two workers know the highest of all the others.
type topLoads struct {
	load   [3]float64
	worker [3]int32
}

var noTopLoads = topLoads{
	load:   [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)},
	worker: [3]int32{-1, -1, -1},
}

// insert puts a worker that is not among the three where it belongs.
func (t *topLoads) insert(load float64, who int32) {
	if load <= t.load[2] && t.worker[2] >= 0 {
		return
	}
	i := 2
	for ; i > 0 && (load > t.load[i-1] || t.worker[i-1] < 0); i-- {
		t.load[i], t.worker[i] = t.load[i-1], t.worker[i-1]
	}
	t.load[i], t.worker[i] = load, who
}

// remove takes a worker out of the three and says whether it was among them.
func (t *topLoads) remove(who int32) bool {
	i := 0
	for ; i < 3 && t.worker[i] != who; i++ {
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

// highestWithout is the highest load of all workers but two (which may be the same).
func (t *topLoads) highestWithout(a, b int32) float64 {
	for i := range 3 {
		if t.worker[i] != a && t.worker[i] != b {
			return t.load[i]
		}
	}
	return math.Inf(-1)
}

// findTopLoads finds the summits of every step.
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

// updateTopLoads brings the summits up to date after one worker's load changed.
func (s *Solver) updateTopLoads(worker int32) {
	row := s.row(worker)
	for h := range row {
		t := &s.top[h]
		if !t.remove(worker) {
			t.insert(row[h], worker)
			continue
		}
		// Whoever comes fourth is not known: as long as the worker stays above the
		// two that are left, or at least above the lower one, nobody else moves up.
		if row[h] >= t.load[1] && t.worker[1] >= 0 {
			t.insert(row[h], worker)
			continue
		}
		s.findTopLoadsAt(h)
	}
}

package bfio

import "math"

// summit is the three highest loads of one step and whose they are (-1: nobody's).
// Three let a swap between two workers know the highest of all the others.
type summit struct {
	load [3]float64
	who  [3]int32
}

var flat = summit{
	load: [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)},
	who:  [3]int32{-1, -1, -1},
}

// insert puts a worker that is not among the three where it belongs.
func (t *summit) insert(load float64, who int32) {
	if load <= t.load[2] && t.who[2] >= 0 {
		return
	}
	i := 2
	for ; i > 0 && (load > t.load[i-1] || t.who[i-1] < 0); i-- {
		t.load[i], t.who[i] = t.load[i-1], t.who[i-1]
	}
	t.load[i], t.who[i] = load, who
}

// remove takes a worker out of the three and says whether it was among them.
func (t *summit) remove(who int32) bool {
	i := 0
	for ; i < 3 && t.who[i] != who; i++ {
	}
	if i == 3 {
		return false
	}
	for ; i < 2; i++ {
		t.load[i], t.who[i] = t.load[i+1], t.who[i+1]
	}
	t.load[2], t.who[2] = math.Inf(-1), -1
	return true
}

// besides is the highest load of all workers but two (which may be the same).
func (t *summit) besides(a, b int32) float64 {
	for i := range 3 {
		if t.who[i] != a && t.who[i] != b {
			return t.load[i]
		}
	}
	return math.Inf(-1)
}

// survey finds the summits of every step.
func (s *Solver) survey() {
	for h := range s.top {
		s.surveyStep(h)
	}
}

func (s *Solver) surveyStep(h int) {
	t := flat
	for k, at := int32(0), h; at < len(s.load); k, at = k+1, at+s.steps {
		t.insert(s.load[at], k)
	}
	s.top[h] = t
}

// touch brings the summits up to date after one worker's load changed.
func (s *Solver) touch(worker int32) {
	row := s.row(worker)
	for h := range row {
		t := &s.top[h]
		if !t.remove(worker) {
			t.insert(row[h], worker)
			continue
		}
		// Whoever comes fourth is not known: as long as the worker stays above the
		// two that are left, or at least above the lower one, nobody else moves up.
		if row[h] >= t.load[1] && t.who[1] >= 0 {
			t.insert(row[h], worker)
			continue
		}
		s.surveyStep(h)
	}
}

package bfio

import (
	"cmp"
	"math"
	"slices"
)

// Solver solves (IO) approximately. It starts with a longest-first seed over the oldest
// jobs (seed.go). Then it replaces placed jobs by the best waiting one (exact for one
// slot, descent.go) and exchanges jobs between workers (swap.go), in several rounds. It
// repeats these rounds after it has replaced jobs under a lowered skyline (lift.go). A
// Solver reuses its buffers, so that steady use allocates nothing. The zero Solver is ready
// to use, by one goroutine at a time.
//
// A decision depends only on its instance. Among equal choices the older job is
// preferred, and workers that differ only in their index are ordered by it.
type Solver struct {
	instance   Instance
	steps      int       // H + 1
	scale      float64   // workers in all: the factor of the highest load in J
	weights    []float64 // per step
	drift      []float64 // growth of a job until each step
	weightSums []float64 // weightSums[n]: the sum of the first n weights

	// Jobs by rank. In this package, rank is the index of a job in the order of age, 0 for the oldest; it is
	// no data-parallel rank.
	byAge   []int32
	jobs    []rankedJob
	placed  int // number of jobs to place
	overdue int // jobs with a lower rank have reached the bound on the wait

	// Jobs sorted by (life, size, rank), and which of them wait.
	pool     []int32 // rank at a position
	position []int32 // position of a rank
	bounds   []int32 // bounds[life] is the first position of that life or longer
	waiting  bitset

	// Workers with a free slot, in canonical order, and one additional row for the
	// highest load of all other workers.
	open      []int32    // index in the instance
	freeSlots []int32    // remaining free slots
	load      []float64  // a row per worker
	base      []float64  // load before any job is placed
	score     []float64  // weighted load, for the seed
	top       []topLoads // per step

	slots, best []slot  // the current ones and the best found so far
	skylineLift float64 // tokens by which the skyline is raised, lift.go

	own, others []float64 // scratch rows, per step
	maxGain     []float64 // bound on the gain of a swap, from each step on
	answer      []int
}

// rankedJob is a job in the form that the search uses.
type rankedJob struct {
	size float64 // prefill
	life int32   // number of steps of the window in which it runs, 1..H+1
}

// slot is one placed job.
type slot struct {
	rank, worker int32 // worker: position in open
}

// Solve returns for each job its worker's index, or Unplaced. The slice belongs to the solver and
// is valid until the next call. Exactly in.Places() jobs are placed: first those that have
// reached the bound on the wait, oldest first, then others.
func (s *Solver) Solve(in Instance) []int {
	s.reset(in)
	if s.placed > 0 {
		s.rankJobs()
		s.sortPool()
		s.openWorkers()
		s.seed()
		s.improve()
		s.liftAll()
	}
	for _, sl := range s.slots {
		s.answer[s.byAge[sl.rank]] = int(s.open[sl.worker])
	}
	s.instance = Instance{} // do not keep the caller's memory alive
	return s.answer
}

// improve runs the passes until one changes nothing.
func (s *Solver) improve() {
	for range s.instance.Options.Passes {
		replaced, swapped := s.replaceAll(), s.swapAll()
		if !replaced && !swapped {
			return
		}
	}
}

func (s *Solver) reset(in Instance) {
	s.instance, s.scale = in, float64(len(in.Workers))
	s.placed = in.Places()
	s.slots = s.slots[:0]
	s.answer = resize(s.answer, len(in.Jobs))
	for i := range s.answer {
		s.answer[i] = Unplaced
	}
	s.setWindow(max(in.Options.H, 0) + 1)
}

// setWindow sets the fields that depend only on the step.
func (s *Solver) setWindow(steps int) {
	s.steps = steps
	s.weights, s.drift = resize(s.weights, steps), resize(s.drift, steps)
	s.weightSums, s.maxGain = resize(s.weightSums, steps+1), resize(s.maxGain, steps+1)
	s.own, s.others = resize(s.own, steps), resize(s.others, steps)
	s.top = resize(s.top, steps)
	s.weightSums[0] = 0
	for h := range steps {
		s.weights[h] = s.instance.Options.weight(h)
		s.drift[h] = float64(int64(h) * s.instance.Options.Drift)
		s.weightSums[h+1] = s.weightSums[h] + s.weights[h]
	}
}

// rankJobs orders the jobs by age. Callers usually pass them in this order.
func (s *Solver) rankJobs() {
	jobs := s.instance.Jobs
	s.byAge = resize(s.byAge, len(jobs))
	sorted := true
	for i := range jobs {
		s.byAge[i] = int32(i)
		sorted = sorted && (i == 0 || jobs[i-1].Waited >= jobs[i].Waited)
	}
	if !sorted {
		slices.SortFunc(s.byAge, func(a, b int32) int {
			return cmp.Or(cmp.Compare(jobs[b].Waited, jobs[a].Waited), cmp.Compare(a, b))
		})
	}
	s.jobs = resize(s.jobs, len(jobs))
	s.overdue = 0
	for rank, i := range s.byAge {
		job := &jobs[i]
		s.jobs[rank] = rankedJob{size: float64(job.Prefill), life: s.life(job.Remaining)}
		if bound := s.instance.Options.WaitBound; bound > 0 && job.Waited >= bound {
			s.overdue++
		}
	}
}

func (s *Solver) life(remaining int) int32 {
	if remaining <= 0 {
		return int32(s.steps)
	}
	return int32(min(remaining, s.steps))
}

// sortPool sorts the jobs by life and size: among jobs of one life, the objective is
// convex in the size of the job in a slot.
func (s *Solver) sortPool() {
	n := len(s.jobs)
	s.pool, s.position = resize(s.pool, n), resize(s.position, n)
	for rank := range s.pool {
		s.pool[rank] = int32(rank)
	}
	jobs := s.jobs
	slices.SortFunc(s.pool, func(a, b int32) int {
		x, y := &jobs[a], &jobs[b]
		if x.life != y.life {
			return int(x.life - y.life)
		}
		if x.size != y.size {
			if x.size < y.size {
				return -1
			}
			return 1
		}
		return int(a - b)
	})
	s.bounds = resize(s.bounds, s.steps+2)
	s.waiting.reset(n)
	life := int32(0)
	for at, rank := range s.pool {
		s.position[rank] = int32(at)
		s.waiting.setBit(int32(at))
		for ; life <= jobs[rank].life; life++ {
			s.bounds[life] = int32(at)
		}
	}
	for ; int(life) < len(s.bounds); life++ {
		s.bounds[life] = int32(n)
	}
}

// openWorkers sorts the workers with a free slot in an order that depends on their state and not on
// their index, and merges all others into one row.
func (s *Solver) openWorkers() {
	workers := s.instance.Workers
	s.open = s.open[:0]
	for g := range workers {
		if workers[g].Free > 0 {
			s.open = append(s.open, int32(g))
		}
	}
	slices.SortFunc(s.open, func(a, b int32) int { return s.compareWorkers(a, b) })
	k := len(s.open)
	s.freeSlots, s.score = resize(s.freeSlots, k), resize(s.score, k)
	s.load = resize(s.load, (k+1)*s.steps)
	for i, g := range s.open {
		s.freeSlots[i], s.score[i] = int32(min(workers[g].Free, s.placed)), 0
		row := s.row(int32(i))
		for h := range row {
			row[h] = float64(workers[g].loadAt(h))
			s.score[i] += s.weights[h] * row[h]
		}
	}
	s.foldClosed(s.row(int32(k)))
	s.base = append(s.base[:0], s.load...)
}

// foldClosed sets row to the highest load of the workers without a free slot.
func (s *Solver) foldClosed(row []float64) {
	for h := range row {
		row[h] = math.Inf(-1)
	}
	for g := range s.instance.Workers {
		w := &s.instance.Workers[g]
		for h := 0; w.Free <= 0 && h < len(row); h++ {
			row[h] = max(row[h], float64(w.loadAt(h)))
		}
	}
}

func (s *Solver) compareWorkers(a, b int32) int {
	x, y := &s.instance.Workers[a], &s.instance.Workers[b]
	for h := range s.steps {
		if d := cmp.Compare(x.loadAt(h), y.loadAt(h)); d != 0 {
			return d
		}
	}
	return cmp.Or(cmp.Compare(x.Free, y.Free), cmp.Compare(a, b))
}

// row returns a worker's load at every step of the window.
func (s *Solver) row(worker int32) []float64 {
	from := int(worker) * s.steps
	return s.load[from : from+s.steps : from+s.steps]
}

// addJob adds sign times the job's tokens to a row.
func (s *Solver) addJob(row []float64, rank int32, sign float64) {
	job := s.jobs[rank]
	drift := s.drift[:job.life]
	row = row[:len(drift)]
	for h := range row {
		row[h] += sign * (job.size + drift[h])
	}
}

// resize returns a slice of n elements with arbitrary contents. It reuses the memory of s if
// that is large enough.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

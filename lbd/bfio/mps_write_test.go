package bfio

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
)

// WriteMPS writes an instance as a mixed-integer programme in free MPS, so that the solver can be
// compared with any integer optimiser. Its objective is Cost.Imbalance. Its variables are xG_J (job
// J is placed on worker G, 0 or 1), mH (the highest load at step H) and one, which is always 1 and
// has the constant part of the objective as coefficient. Workers without a free slot have no
// variables of their own. The bound on the wait, as in Check, is part of the rows of the jobs.
func WriteMPS(w io.Writer, in Instance) error {
	p := mpsWriter{w: bufio.NewWriter(w), in: in}
	p.prepare()
	p.rows()
	p.columns()
	p.rightHandSides()
	p.printf("BOUNDS\n FX BND one 1\n")
	for h := 0; h <= in.Options.H; h++ {
		p.printf(" FR BND m%d\n", h)
	}
	for job := range in.Jobs {
		for _, g := range p.open {
			p.printf(" BV BND x%d_%d\n", g, job)
		}
	}
	p.printf("ENDATA\n")
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("writing an instance as MPS: %w", err)
	}
	return nil
}

// mpsWriter is one instance that is being written as MPS. bufio keeps the first error.
type mpsWriter struct {
	w      *bufio.Writer
	in     Instance
	open   []int
	places int
	// Values of Job.Waited: a job must be placed if its value is at least placed, and must stay in
	// the queue if it is less than stay.
	placed, stay int
}

func (p *mpsWriter) printf(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

func (p *mpsWriter) prepare() {
	for g, w := range p.in.Workers {
		if w.Free > 0 {
			p.open = append(p.open, g)
		}
	}
	p.places = p.in.Places()
	p.placed, p.stay = math.MaxInt, math.MinInt
	if bound := p.in.Options.WaitBound; bound > 0 && p.places > 0 {
		p.settle(bound)
	}
}

// settle applies the bound: all jobs that have reached it are placed or, if there are too many,
// only the oldest of them. Of equally old ones, any may be placed.
func (p *mpsWriter) settle(bound int) {
	var waits []int
	for _, job := range p.in.Jobs {
		waits = append(waits, job.Waited)
	}
	slices.SortFunc(waits, func(a, b int) int { return cmp.Compare(b, a) })
	p.placed = bound
	if len(waits) > p.places && waits[p.places] >= bound {
		p.stay = waits[p.places-1]
		p.placed = p.stay + 1
	}
}

// must reports whether the wait bound requires a job to be placed, or to stay.
func (p *mpsWriter) must(job int) (placed, stays bool) {
	waited := p.in.Jobs[job].Waited
	return waited >= p.placed, waited < p.stay
}

func (p *mpsWriter) rows() {
	p.printf("NAME bfio\nROWS\n N cost\n E places\n")
	for job := range p.in.Jobs {
		sense := "L"
		if placed, stays := p.must(job); placed || stays {
			sense = "E"
		}
		p.printf(" %s job%d\n", sense, job)
	}
	for _, g := range p.open {
		p.printf(" L slots%d\n", g)
	}
	for h := 0; h <= p.in.Options.H; h++ {
		for g := range p.in.Workers {
			p.printf(" L load%d_%d\n", g, h)
		}
	}
}

// columns writes each x with its place in every row, then the peak loads m. Their rows state that
// the jobs' tokens on worker g, minus m, are at most minus its own load.
func (p *mpsWriter) columns() {
	p.printf("COLUMNS\n M1 'MARKER' 'INTORG'\n")
	for job := range p.in.Jobs {
		total := 0.0
		for h := 0; h <= p.in.Options.H; h++ {
			total -= p.in.Options.weight(h) * float64(p.in.size(job, h))
		}
		for _, g := range p.open {
			p.printf(" x%d_%d cost %.17g places 1\n x%d_%d job%d 1 slots%d 1\n", g, job, total, g, job, job, g)
			for h := 0; h <= p.in.Options.H; h++ {
				p.printf(" x%d_%d load%d_%d %d\n", g, job, g, h, p.in.size(job, h))
			}
		}
	}
	p.printf(" M2 'MARKER' 'INTEND'\n")
	constant := 0.0
	for h := 0; h <= p.in.Options.H; h++ {
		weight := p.in.Options.weight(h)
		p.printf(" m%d cost %.17g\n", h, weight*float64(len(p.in.Workers)))
		for g := range p.in.Workers {
			p.printf(" m%d load%d_%d -1\n", h, g, h)
			constant -= weight * float64(p.in.Workers[g].loadAt(h))
		}
	}
	p.printf(" one cost %.17g\n", constant)
}

func (p *mpsWriter) rightHandSides() {
	p.printf("RHS\n RHS places %d\n", p.places)
	for job := range p.in.Jobs {
		if _, stays := p.must(job); !stays {
			p.printf(" RHS job%d 1\n", job)
		}
	}
	for _, g := range p.open {
		p.printf(" RHS slots%d %d\n", g, p.in.Workers[g].Free)
	}
	for h := 0; h <= p.in.Options.H; h++ {
		for g := range p.in.Workers {
			p.printf(" RHS load%d_%d %d\n", g, h, -p.in.Workers[g].loadAt(h))
		}
	}
}

package bfio

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// programme is a parsed MPS file.
type programme struct {
	sense map[string]byte
	rhs   map[string]float64
	cells map[string]map[string]float64 // column -> row -> coefficient
	bound map[string]string
}

func readMPS(t interface{ Fatalf(string, ...any) }, text string) programme {
	p := programme{sense: map[string]byte{}, rhs: map[string]float64{}, cells: map[string]map[string]float64{}, bound: map[string]string{}}
	section := ""
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case line[0] != ' ':
			section = f[0]
		case section == "ROWS":
			p.sense[f[1]] = f[0][0]
		case section == "COLUMNS" && f[1] != "'MARKER'":
			if p.cells[f[0]] == nil {
				p.cells[f[0]] = map[string]float64{}
			}
			p.pairs(t, p.cells[f[0]], f[1:])
		case section == "RHS":
			p.pairs(t, p.rhs, f[1:])
		case section == "BOUNDS":
			p.bound[f[2]] = f[0]
		}
	}
	if section != "ENDATA" {
		t.Fatalf("the file ends in %s", section)
	}
	return p
}

func (p programme) pairs(t interface{ Fatalf(string, ...any) }, into map[string]float64, f []string) {
	for ; len(f) > 1; f = f[2:] {
		v, err := strconv.ParseFloat(f[1], 64)
		if _, twice := into[f[0]]; err != nil || twice || p.sense[f[0]] == 0 {
			t.Fatalf("row %s: %s: %v", f[0], f[1], err)
		}
		into[f[0]] = v
	}
}

// value returns the objective with the given columns set, and whether all rows hold.
func (p programme) value(columns map[string]float64) (float64, bool) {
	sums := map[string]float64{}
	for column, v := range columns {
		for row, a := range p.cells[column] {
			sums[row] += a * v
		}
	}
	for row, sense := range p.sense {
		if (sense == 'E' && sums[row] != p.rhs[row]) || (sense == 'L' && sums[row] > p.rhs[row]) {
			return 0, false
		}
	}
	return sums["cost"], true
}

// columns returns the values of the variables for an assignment; false if it uses a worker without
// variables.
func columns(p programme, in Instance, answer []int) (map[string]float64, bool) {
	values := map[string]float64{"one": 1}
	for job, g := range answer {
		if g == Unplaced {
			continue
		}
		name := fmt.Sprintf("x%d_%d", g, job)
		if p.bound[name] != "BV" {
			return nil, false
		}
		values[name] = 1
	}
	for h := range in.Options.H + 1 {
		peak := math.Inf(-1)
		for g := range in.Workers {
			load := in.Workers[g].loadAt(h)
			for job, at := range answer {
				if at == g {
					load += in.size(job, h)
				}
			}
			peak = max(peak, float64(load))
		}
		values[fmt.Sprintf("m%d", h)] = peak
	}
	return values, true
}

// The file and Check accept the same assignments. Each has the same cost in the file and here.
func TestMPSMatchesInstance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := instance(drawRapid(t), 3, 4)
		var text bytes.Buffer
		if err := WriteMPS(&text, in); err != nil {
			t.Fatal(err)
		}
		p := readMPS(t, text.String())
		answer := make([]int, len(in.Jobs))
		var try func(job int)
		try = func(job int) {
			if job < len(answer) {
				for answer[job] = Unplaced; answer[job] < len(in.Workers); answer[job]++ {
					try(job + 1)
				}
				return
			}
			values, known := columns(p, in, answer)
			value, holds := p.value(values)
			if err := Check(in, answer); (err == nil) != (known && holds) {
				t.Fatalf("%v: the file says %v, Check %v\n%s", answer, known && holds, err, text.String())
			}
			if want := Evaluate(in, answer).Imbalance; known && holds && math.Abs(value-want) > 1e-9*(1+math.Abs(want)) {
				t.Fatalf("%v: %v in the file, %v here\n%s", answer, value, want, text.String())
			}
		}
		try(0)
	})
}

type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteMPSReportsFailure(t *testing.T) {
	in := Instance{Workers: []Worker{{Free: 1}}, Jobs: []Job{{Prefill: 1}}, Options: Defaults(0)}
	if err := WriteMPS(full{}, in); !errors.Is(err, errFull) {
		t.Errorf("WriteMPS: %v", err)
	}
}

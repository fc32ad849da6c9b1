package plan

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// row is one linear row of the programme.
type row struct {
	name  string
	terms []term
	sense string // ">=" or "<="
	right float64
}

type term struct {
	factor float64
	column string
}

func num(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// rows lists the programme's rows over the columns s_i_j_k (replicas that
// stay, at most n) and a_i_j_k (replicas added): x = s + a, so that
// max(0, delta) needs no row of its own.
func (p *Problem) rows() []row {
	var out []row
	for i := range p.Models {
		all := row{name: fmt.Sprintf("global_%d", i), sense: ">=", right: p.GlobalNeed(i)}
		for j := range p.Regions {
			local := row{name: fmt.Sprintf("local_%d_%d", i, j), sense: ">=", right: p.LocalNeed(i, j)}
			count := row{}
			for k := range p.GPUs {
				local.terms = append(local.terms, both(p.Theta[i][k], i, j, k)...)
				count.terms = append(count.terms, both(1, i, j, k)...)
			}
			all.terms = append(all.terms, local.terms...)
			out = append(out, local)
			if least := limit(p.Min, i, j, 0); least > 0 {
				out = append(out, row{fmt.Sprintf("min_%d_%d", i, j), count.terms, ">=", float64(least)})
			}
			if most := limit(p.Max, i, j, unlimited); most < unlimited {
				out = append(out, row{fmt.Sprintf("max_%d_%d", i, j), count.terms, "<=", float64(most)})
			}
		}
		out = append(out, all)
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			if capacity := limit(p.Capacity, j, k, unlimited); capacity < unlimited {
				r := row{name: fmt.Sprintf("capacity_%d_%d", j, k), sense: "<=", right: float64(capacity)}
				for i := range p.Models {
					r.terms = append(r.terms, both(1, i, j, k)...)
				}
				out = append(out, r)
			}
		}
	}
	return out
}

func both(factor float64, i, j, k int) []term {
	return []term{{factor, column("s", i, j, k)}, {factor, column("a", i, j, k)}}
}

func column(kind string, i, j, k int) string { return fmt.Sprintf("%s_%d_%d_%d", kind, i, j, k) }

// eachCell calls f for every model, region and GPU.
func (p *Problem) eachCell(f func(i, j, k int)) {
	for i := range p.Models {
		for j := range p.Regions {
			for k := range p.GPUs {
				f(i, j, k)
			}
		}
	}
}

// legend says which index is which name, line by line.
func (p *Problem) legend(mark string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s columns: s_i_j_k = replicas that stay, a_i_j_k = replicas added\n", mark)
	for _, set := range []struct {
		index string
		names []string
	}{{"i", p.Models}, {"j", p.Regions}, {"k", p.GPUs}} {
		for n, name := range set.names {
			fmt.Fprintf(&b, "%s %s=%d: %s\n", mark, set.index, n, strings.Join(strings.Fields(name), " "))
		}
	}
	return b.String()
}

// WriteLP writes the programme in CPLEX LP format, which GLPK, CBC and HiGHS
// read.
func (p *Problem) WriteLP(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprint(b, p.legend("\\"), "Minimize\n cost:")
	p.eachCell(func(i, j, k int) {
		fmt.Fprintf(b, "\n + %s %s + %s %s", num(p.Alpha[k]), column("s", i, j, k), num(p.Alpha[k]+p.Sigma[i][k]), column("a", i, j, k))
	})
	fmt.Fprint(b, "\nSubject To\n")
	for _, r := range p.rows() {
		fmt.Fprintf(b, " %s:", r.name)
		for _, t := range r.terms {
			fmt.Fprintf(b, "\n + %s %s", num(t.factor), t.column)
		}
		fmt.Fprintf(b, "\n %s %s\n", r.sense, num(r.right))
	}
	fmt.Fprint(b, "Bounds\n")
	p.eachCell(func(i, j, k int) { fmt.Fprintf(b, " 0 <= %s <= %d\n", column("s", i, j, k), p.N[i][j][k]) })
	fmt.Fprint(b, "Generals\n")
	p.eachCell(func(i, j, k int) { fmt.Fprintf(b, " %s\n %s\n", column("s", i, j, k), column("a", i, j, k)) })
	fmt.Fprint(b, "End\n")
	return b.Flush()
}

// WriteMPS writes the programme in free MPS format.
func (p *Problem) WriteMPS(w io.Writer) error {
	b := bufio.NewWriter(w)
	rows := p.rows()
	fmt.Fprint(b, p.legend("*"), "NAME skyserve_plan\nROWS\n N cost\n")
	entries := map[string][]string{}
	for _, r := range rows {
		sense := "G"
		if r.sense == "<=" {
			sense = "L"
		}
		fmt.Fprintf(b, " %s %s\n", sense, r.name)
		for _, t := range r.terms {
			entries[t.column] = append(entries[t.column], r.name+" "+num(t.factor))
		}
	}
	fmt.Fprint(b, "COLUMNS\n M1 'MARKER' 'INTORG'\n")
	p.eachCell(func(i, j, k int) {
		for _, c := range []struct {
			name string
			cost float64
		}{{column("s", i, j, k), p.Alpha[k]}, {column("a", i, j, k), p.Alpha[k] + p.Sigma[i][k]}} {
			fmt.Fprintf(b, " %s cost %s\n", c.name, num(c.cost))
			for _, e := range entries[c.name] {
				fmt.Fprintf(b, " %s %s\n", c.name, e)
			}
		}
	})
	fmt.Fprint(b, " M2 'MARKER' 'INTEND'\nRHS\n")
	for _, r := range rows {
		fmt.Fprintf(b, " rhs %s %s\n", r.name, num(r.right))
	}
	fmt.Fprint(b, "BOUNDS\n")
	p.eachCell(func(i, j, k int) {
		fmt.Fprintf(b, " UP bnd %s %d\n", column("s", i, j, k), p.N[i][j][k])
		fmt.Fprintf(b, " PL bnd %s\n", column("a", i, j, k))
	})
	fmt.Fprint(b, "ENDATA\n")
	return b.Flush()
}

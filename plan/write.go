package plan

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// linearRow is a row of the program as files for other solvers state it.
type linearRow struct {
	name  string
	terms []term
	sense string // ">=" or "<="
	rhs   float64
}

type term struct {
	factor float64
	column string
}

func formatNumber(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// rows lists the program's rows over the variables s_i_j_k (kept replicas, at most Problem.Current), a_i_j_k
// (added replicas) and, where they apply, t_i_j_k (replicas on VMs taken over from another model)
// and o_i_j_w (load sent to other regions). The count is x = s + t + a, so that the start cost is
// linear.
func (p *Problem) rows() []linearRow {
	var out []linearRow
	sets := p.reachSets()
	for i := range p.Models {
		out = append(out, p.modelRows(i, sets)...)
	}
	for j := range p.Regions {
		for k := range p.GPUs {
			if limit := limitOr(p.Capacity, j, k, unlimited); limit < unlimited {
				r := linearRow{name: fmt.Sprintf("capacity_%d_%d", j, k), sense: "<=", rhs: float64(limit)}
				for i := range p.Models {
					r.terms = append(r.terms, p.countTerms(1, i, j, k)...)
				}
				out = append(out, r)
			}
			if p.SwitchCostUSD != nil {
				r := linearRow{name: fmt.Sprintf("running_vms_%d_%d", j, k), sense: "<=", rhs: float64(p.runningVMs(j, k))}
				for i := range p.Models {
					all := p.countTerms(1, i, j, k)
					r.terms = append(r.terms, all[:len(all)-1]...) // all but the added replicas
				}
				out = append(out, r)
			}
		}
	}
	return out
}

// modelRows lists the rows of model i alone.
func (p *Problem) modelRows(i int, sets []regionSet) []linearRow {
	var out []linearRow
	capacityTerms, countTermsOfAll := make([][]term, len(p.Regions)), []term{}
	for j := range p.Regions {
		var count []term
		for k := range p.GPUs {
			capacityTerms[j] = append(capacityTerms[j], p.countTerms(p.ReplicaTPS[i][k], i, j, k)...)
			count = append(count, p.countTerms(1, i, j, k)...)
		}
		countTermsOfAll = append(countTermsOfAll, count...)
		out = append(out, linearRow{fmt.Sprintf("local_%d_%d", i, j), capacityTerms[j], ">=", p.LocalDemand(i, j)})
		out = append(out, boundRows(fmt.Sprintf("%d_%d", i, j), count, limitOr(p.Min, i, j, 0), limitOr(p.Max, i, j, unlimited))...)
		for w, load := range p.LoadTPS[i][j] {
			if p.egressCostOf(i, j).price > 0 {
				out = append(out, linearRow{
					fmt.Sprintf("forwarded_%d_%d_%d", i, j, w), append([]term{{1, columnName("o", i, j, w)}}, capacityTerms[j]...), ">=", load,
				})
			}
		}
	}
	out = append(out, boundRows(fmt.Sprintf("total_%d", i), countTermsOfAll, totalOr(p.MinTotal, i, 0), totalOr(p.MaxTotal, i, unlimited))...)
	for n, c := range p.covers(i, sets) {
		r := linearRow{name: fmt.Sprintf("cover_%d_%d", i, n), sense: ">=", rhs: c.need}
		if c.regions.size() == len(p.Regions) {
			r.name = fmt.Sprintf("global_%d", i)
		}
		for j := range p.Regions {
			if c.regions.has(j) {
				r.terms = append(r.terms, capacityTerms[j]...)
			}
		}
		if len(r.terms) == 0 { // no region remains to serve it: infeasible
			r.terms = p.countTerms(0, i, 0, 0)
		}
		out = append(out, r)
	}
	return out
}

// boundRows returns the rows that keep a count between minimum and maximum.
func boundRows(name string, count []term, minimum, maximum int) []linearRow {
	var out []linearRow
	if minimum > 0 {
		out = append(out, linearRow{"min_" + name, count, ">=", float64(minimum)})
	}
	if maximum < unlimited {
		out = append(out, linearRow{"max_" + name, count, "<=", float64(maximum)})
	}
	return out
}

// countTerms returns factor times the replicas of model i in region j on GPU k; the added ones come last.
func (p *Problem) countTerms(factor float64, i, j, k int) []term {
	out := []term{{factor, columnName("s", i, j, k)}}
	if p.canTakeOverVMs(i, k) {
		out = append(out, term{factor, columnName("t", i, j, k)})
	}
	return append(out, term{factor, columnName("a", i, j, k)})
}

func columnName(kind string, i, j, k int) string { return fmt.Sprintf("%s_%d_%d_%d", kind, i, j, k) }

// variable is a column of the program.
type variable struct {
	name    string
	cost    float64
	max     int // -1 = no bound
	integer bool
}

// columns lists the program's columns.
func (p *Problem) columns() []variable {
	var out []variable
	p.eachCount(func(i, j, k int) {
		price, maxKept, maxAdded := p.Price(j, k), p.Current[i][j][k], -1
		if p.ReplicaTPS[i][k] == 0 {
			maxKept, maxAdded = 0, 0 // the model does not run there
		}
		out = append(out, variable{columnName("s", i, j, k), price, maxKept, true})
		if p.canTakeOverVMs(i, k) {
			out = append(out, variable{columnName("t", i, j, k), price + *p.SwitchCostUSD[i][k], maxAdded, true})
		}
		out = append(out, variable{columnName("a", i, j, k), price + p.StartCostUSD[i][k], maxAdded, true})
	})
	for i := range p.Models {
		for j := range p.Regions {
			for w := range p.LoadTPS[i][j] {
				if a := p.egressCostOf(i, j); a.price > 0 {
					out = append(out, variable{columnName("o", i, j, w), a.price / float64(len(a.loads)), -1, false})
				}
			}
		}
	}
	return out
}

// eachCount calls f for every model, region and GPU.
func (p *Problem) eachCount(f func(i, j, k int)) {
	for i := range p.Models {
		for j := range p.Regions {
			for k := range p.GPUs {
				f(i, j, k)
			}
		}
	}
}

// legend explains the columns and lists the name of each index, one per line.
func (p *Problem) legend(mark string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s columns: s_i_j_k = replicas kept, a_i_j_k = replicas added\n", mark)
	if p.SwitchCostUSD != nil {
		fmt.Fprintf(&b, "%s t_i_j_k = replicas on VMs taken over from another model\n", mark)
	}
	if p.Egress != nil {
		fmt.Fprintf(&b, "%s o_i_j_w = load sent to other regions in window w, tokens per second\n", mark)
	}
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

// WriteLP writes the program in CPLEX LP format, which GLPK, CBC and HiGHS read.
func (p *Problem) WriteLP(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprint(b, p.legend("\\"), "Minimize\n cost:")
	for at, c := range p.columns() {
		if at%2 == 0 {
			fmt.Fprint(b, "\n")
		}
		fmt.Fprintf(b, " + %s %s", formatNumber(c.cost), c.name)
	}
	fmt.Fprint(b, "\nSubject To\n")
	for _, r := range p.rows() {
		fmt.Fprintf(b, " %s:", r.name)
		for _, t := range r.terms {
			fmt.Fprintf(b, "\n + %s %s", formatNumber(t.factor), t.column)
		}
		fmt.Fprintf(b, "\n %s %s\n", r.sense, formatNumber(r.rhs))
	}
	fmt.Fprint(b, "Bounds\n")
	for _, c := range p.columns() {
		if c.max >= 0 {
			fmt.Fprintf(b, " 0 <= %s <= %d\n", c.name, c.max)
		}
	}
	fmt.Fprint(b, "Generals\n")
	for _, c := range p.columns() {
		if c.integer {
			fmt.Fprintf(b, " %s\n", c.name)
		}
	}
	fmt.Fprint(b, "End\n")
	return b.Flush()
}

// WriteMPS writes the program in free MPS format.
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
			entries[t.column] = append(entries[t.column], r.name+" "+formatNumber(t.factor))
		}
	}
	fmt.Fprint(b, "COLUMNS\n M1 'MARKER' 'INTORG'\n")
	columns := p.columns()
	write := func(whole bool) {
		for _, c := range columns {
			if c.integer != whole {
				continue
			}
			fmt.Fprintf(b, " %s cost %s\n", c.name, formatNumber(c.cost))
			for _, e := range entries[c.name] {
				fmt.Fprintf(b, " %s %s\n", c.name, e)
			}
		}
	}
	write(true)
	fmt.Fprint(b, " M2 'MARKER' 'INTEND'\n")
	write(false)
	fmt.Fprint(b, "RHS\n")
	for _, r := range rows {
		fmt.Fprintf(b, " rhs %s %s\n", r.name, formatNumber(r.rhs))
	}
	fmt.Fprint(b, "BOUNDS\n")
	for _, c := range columns {
		if c.max >= 0 {
			fmt.Fprintf(b, " UP bnd %s %d\n", c.name, c.max)
		} else {
			fmt.Fprintf(b, " PL bnd %s\n", c.name)
		}
	}
	fmt.Fprint(b, "ENDATA\n")
	return b.Flush()
}

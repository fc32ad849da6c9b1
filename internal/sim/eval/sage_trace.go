package eval

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim"
)

// SageTrace is demand per minute, in the format of SageServe's authors.
type SageTrace struct {
	Name   string
	Models []string // sorted
	// minutes holds prompt tokens by model and tier (IW, NIW), one value per minute; a minute missing in
	// the file repeats the one before.
	minutes [][2][]float64
	// shares are by region and tier (IW, NIW); nil = the published ones.
	shares [][2]float64
}

// traceTiers are the tiers of a SageTrace. It does not separate IW-F and IW-N.
var traceTiers = []string{"IW", "NIW"}

// fastShare is the part of the interactive load that is IW-F, which a trace does not contain (SageServe
// figure 3c).
const fastShare = 0.62

// maxTraceMinutes limits a trace to a year.
const maxTraceMinutes = 366 * 24 * 60

// maxMinuteTokens limits the tokens of a minute.
const maxMinuteTokens = 1e10

// ReadSageTrace reads CSV with the columns minute (from 0), model, tier (IW, NIW) and prompt_tokens,
// plain or compressed with gzip; it ignores other columns. Errors contain the line and the value.
func ReadSageTrace(name string, in io.Reader) (*SageTrace, error) {
	t := &SageTrace{Name: name}
	known := map[string]*[2][]float64{}
	err := readTable(name, in, []string{"minute", "model", "tier", "prompt_tokens"}, func(row []string) error {
		minute, err := strconv.Atoi(row[0])
		if err != nil || minute < 0 || minute >= maxTraceMinutes {
			return fmt.Errorf("minute: must be an integer from 0 to %d, got %q", maxTraceMinutes-1, row[0])
		}
		tier := slices.Index(traceTiers, row[2])
		if tier < 0 {
			return fmt.Errorf("tier: must be IW or NIW, got %q", row[2])
		}
		tokens, err := strconv.ParseFloat(row[3], 64)
		if err != nil || !(tokens >= 0 && tokens <= maxMinuteTokens) {
			return fmt.Errorf("prompt_tokens: must be a number from 0 to %g, got %q", float64(maxMinuteTokens), row[3])
		}
		series := known[row[1]]
		if series == nil {
			series = new([2][]float64)
			known[row[1]] = series
		}
		s := series[tier]
		for len(s) <= minute {
			last := 0.0
			if len(s) > 0 {
				last = s[len(s)-1]
			}
			s = append(s, last)
		}
		s[minute] = tokens
		series[tier] = s
		return nil
	})
	if err != nil {
		return nil, err
	}
	for model := range known {
		t.Models = append(t.Models, model)
	}
	slices.Sort(t.Models)
	for _, model := range t.Models {
		t.minutes = append(t.minutes, *known[model])
	}
	if len(t.Models) == 0 {
		return nil, fmt.Errorf("reading %s: no rows", name)
	}
	return t, nil
}

// ReadMix reads the distribution of the trace's requests over regions: CSV with the columns tenant,
// tier and requests_in_sample. A tenant belongs to the region that its name ends with, ignoring digits
// (prod-northcentralus, prod-westus3); other tenants are ignored.
func (t *SageTrace) ReadMix(name string, in io.Reader, regions []string) error {
	shares := make([][2]float64, len(regions))
	var sum [2]float64
	err := readTable(name, in, []string{"tenant", "tier", "requests_in_sample"}, func(row []string) error {
		tier := slices.Index(traceTiers, row[1])
		if tier < 0 {
			return fmt.Errorf("tier: must be IW or NIW, got %q", row[1])
		}
		n, err := strconv.ParseFloat(row[2], 64)
		if err != nil || !(n >= 0 && n <= maxMinuteTokens) {
			return fmt.Errorf("requests_in_sample: must be at least 0, got %q", row[2])
		}
		for r, region := range regions {
			if strings.HasSuffix(strings.TrimRight(row[0], "0123456789"), region) {
				shares[r][tier] += n
				sum[tier] += n
				break
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if sum[0] == 0 || sum[1] == 0 {
		return fmt.Errorf("reading %s: must contain requests of both tiers in the regions %s, got %g and %g", name, strings.Join(regions, ", "), sum[0], sum[1])
	}
	for r := range shares {
		for tier := range sum {
			shares[r][tier] /= sum[tier]
		}
	}
	t.shares = shares
	return nil
}

// readTable reads CSV with a header and passes the requested columns of each row to take, in the order
// of columns.
func readTable(name string, in io.Reader, columns []string, take func(row []string) error) error {
	text, err := decompress(name, in)
	if err != nil {
		return err
	}
	r := csv.NewReader(text)
	r.ReuseRecord = true
	header, err := r.Read()
	if err != nil {
		return fmt.Errorf("reading %s:1: header: %w", name, err)
	}
	index, err := service.Columns(header)
	if err != nil {
		return fmt.Errorf("reading %s:1: %w", name, err)
	}
	var at []int
	for _, c := range columns {
		i, ok := index[c]
		if !ok {
			return fmt.Errorf("reading %s:1: must have the columns %s, got %s", name, strings.Join(columns, ", "), strings.Join(header, ", "))
		}
		at = append(at, i)
	}
	row := make([]string, len(columns))
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		for k, i := range at {
			row[k] = record[i]
		}
		if err := take(row); err != nil {
			line, _ := r.FieldPos(0)
			return fmt.Errorf("reading %s:%d: %w", name, line, err)
		}
	}
}

// models returns the simulated models that serve the trace's, in its order: llama2-70b, llama3.1-8b,
// bloom-176b, llama3.2-3b.
func (t *SageTrace) models(all []sim.FleetModel) []sim.FleetModel {
	order := []int{0, 2, 1, 3}
	var out []sim.FleetModel
	for _, i := range order {
		if i < len(all) && len(out) < len(t.Models) {
			out = append(out, all[i])
		}
	}
	return out
}

// demand returns the trace as the demand of a fleet; minutes after the end of a series have no load.
func (t *SageTrace) demand(s *sim.FleetScenario, load, deferred float64) (*sim.Demand, error) {
	need := int((s.From + s.Duration) / time.Minute)
	d := sim.NewDemand(len(s.Models), len(s.Regions), need)
	have := 0
	for m := range s.Models {
		for r := range s.Regions {
			for tier, series := range t.minutes[m] {
				have = max(have, len(series))
				share := load * t.share(s, r, tier) / 60
				for i, tokens := range series[:min(len(series), need)] {
					v := tokens * share
					if tier == 1 {
						d.PromptTPS[m][r][2][i] = v * deferred
						continue
					}
					d.PromptTPS[m][r][0][i], d.PromptTPS[m][r][1][i] = v*fastShare, v*(1-fastShare)
				}
			}
		}
	}
	if have < need {
		return nil, fmt.Errorf("%s: ends after %d minutes, but the run needs %d", t.Name, have, need)
	}
	return d, nil
}

// share returns a region's part of a tier, from the mix or the generated week.
func (t *SageTrace) share(s *sim.FleetScenario, region, tier int) float64 {
	if t.shares != nil {
		return t.shares[region][tier]
	}
	shares := sim.RegionShares()
	if len(s.Regions) < len(shares) {
		return 1 / float64(len(s.Regions))
	}
	return shares[region]
}

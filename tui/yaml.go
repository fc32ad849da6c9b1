package tui

import (
	"encoding/json"
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/goccy/go-yaml"

	"skyserve/internal/service"
)

// showYAML shows the selected row as YAML, or service.yaml if nothing is selected.
func (m *Model) showYAML() tea.Cmd {
	s := &m.screen
	id, ok := s.pane().selection()
	if s.snapshot == nil || !ok {
		return m.openSpec()
	}
	what := s.selectedValue(id)
	if what == nil { // as for a model whose traffic no balancer reports
		m.showToast("yaml: the snapshot has no figures of this row", true)
		return nil
	}
	lines, err := yamlLines(what)
	if err != nil {
		m.showToast("yaml: "+err.Error(), true)
		return nil
	}
	s.openText(s.theme.text(id), lines)
	return nil
}

// selectedValue returns the part of the snapshot behind the selected row; nil if there is
// none.
func (s *screen) selectedValue(id string) any {
	switch s.view {
	case viewOverview:
		if r := findRegion(s.snapshot, service.Region(id)); r != nil {
			return r
		}
	case viewReplicas:
		if r, ok := s.table.current(); ok {
			return r.replica
		}
	case viewRequests:
		if r, ok := s.selectedRequest(); ok {
			return r.RequestSummary
		}
	case viewForecast:
		if f := s.plotted(); f != nil {
			return f
		}
	case viewPlan:
		for i := range s.snapshot.Plan.Changes {
			if c := &s.snapshot.Plan.Changes[i]; changeID(c) == id {
				return c
			}
		}
	case viewDonations:
		for i := range s.snapshot.Donations {
			if s.snapshot.Donations[i].Replica == id {
				return &s.snapshot.Donations[i]
			}
		}
	case viewModels:
		if m := s.models()[id]; m != nil && m.traffic != nil {
			return m.traffic
		}
	case viewTenants:
		for _, k := range s.keyTraffic() {
			if keyID(k) == id {
				return k
			}
		}
	case viewCost:
		return s.modelIn(id)
	case viewBatches:
		for i := range s.snapshot.Batches {
			if s.snapshot.Batches[i].ID == id {
				return &s.snapshot.Batches[i]
			}
		}
		return s.modelIn(id) // without batches, the view lists the queues of models
	case viewEvents:
		for _, e := range s.listedEvents() {
			if e.ID == id {
				return e.Event
			}
		}
	}
	return nil
}

// modelIn returns the model in a region of a row with the id "REGION MODEL"; nil if there is none.
func (s *screen) modelIn(id string) any {
	region, model, _ := strings.Cut(id, " ")
	if r := findRegion(s.snapshot, service.Region(region)); r != nil {
		for _, m := range modelsOf(r) {
			if m.Model == model {
				return m
			}
		}
	}
	return nil
}

// yamlLines encodes a value as YAML, with the keys and the order of its JSON.
func yamlLines(v any) ([]string, error) {
	text, err := json.Marshal(v)
	if err == nil {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return nil, fmt.Errorf("writing %T as YAML: %w", v, err)
	}
	return strings.Split(strings.TrimRight(string(text), "\n"), "\n"), nil
}

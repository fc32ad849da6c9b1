package engine

import (
	"reflect"
	"strings"
	"testing"
)

func TestProfiles(t *testing.T) {
	for _, p := range Profiles() {
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		if got, err := FindProfile(p.Name); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("FindProfile(%q) = %v, %v", p.Name, got, err)
		}
	}
	_, err := FindProfile("h100")
	if err == nil || !strings.Contains(err.Error(), `"h100"`) || !strings.Contains(err.Error(), "l4-llama3.1-8b-38k") {
		t.Errorf("FindProfile with an unknown name: %v", err)
	}
	if _, err := New(small(func(p *Profile) { p.ChunkTokens = 0 }), ReportTokens); err == nil || !strings.Contains(err.Error(), "ChunkTokens must be at least 1, got 0") {
		t.Errorf("New with no chunk: %v", err)
	}
}

package catalogue

import (
	"math"
	"testing"

	"skyserve/internal/service"
)

// Each of Google's machine types with GPUs has local SSDs, or takes some, never both.
func TestLocalSSDsOfEveryType(t *testing.T) {
	for _, m := range machines {
		l, known := googleLocalSSDs[m.Type]
		if want := m.Cloud == service.CloudGCP && m.GPU != ""; known != want || known && (len(l.attachable) > 0) == (l.bundled > 0) {
			t.Errorf("%s: local SSDs %+v", m.Type, l)
		}
	}
}

func TestLocalSSDProblem(t *testing.T) {
	for _, tt := range []struct {
		gpu         string
		count, ssds int
		want        string
	}{
		{"L4", 1, 0, ""},
		{"L4", 0, 1, ""},
		{"L4", 2, 2, ""},
		{"L4", 8, 8, ""},
		{"A100", 2, 4, ""},
		{"L4", 1, 2, "must be 1 for g2-standard-4 of Google Cloud"},
		{"L4", 4, 1, "must be 4 for g2-standard-48 of Google Cloud"},
		{"A100", 1, 3, "must be 1, 2, 4 or 8 for a2-highgpu-1g of Google Cloud"},
		{"H100", 8, 16, "must be unset: a3-highgpu-8g of Google Cloud always has 16 local SSDs, which are used"},
		{"A10G", 1, 1, "must be unset: Google Cloud has no machine type with 1 x A10G that takes local SSDs"},
	} {
		g := service.GPU{Type: tt.gpu, Count: tt.count, LocalSSDs: tt.ssds}
		if got := LocalSSDProblem(g); got != tt.want {
			t.Errorf("%+v: got %q, want %q", g, got, tt.want)
		}
	}
}

// A local SSD of 375 GB at $0.08 per GB and month costs $30 a month. Only Google attaches them.
func TestLocalSSDPrice(t *testing.T) {
	g := service.GPU{Type: "L4", Count: 2, LocalSSDs: 2}
	if got := LocalSSDPrice(service.CloudGCP, g) * 730; math.Abs(got-60) > 1e-9 {
		t.Errorf("two cost $%g per month, want $60", got)
	}
	if got := LocalSSDPrice(service.CloudAWS, g); got != 0 {
		t.Errorf("at AWS they cost $%g per hour, want 0", got)
	}
}

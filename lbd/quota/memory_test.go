package quota

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// For random changes, the accounted memory is the sum of all uses, in total and by tenant, within
// its bounds, and zero at the end.
func TestMemoryIsSumOfUses(t *testing.T) {
	const total, share = 1000, 400
	rapid.Check(t, func(t *rapid.T) {
		m := NewMemory(total, share)
		type one struct {
			MemoryUse
			bytes int64
		}
		var all []*one
		sum := func(tenant string) (n int64) {
			for _, h := range all {
				if tenant == "*" || h.tenant == tenant {
					n += h.bytes
				}
			}
			return n
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(all) == 0 || rapid.IntRange(0, 3).Draw(t, "new") == 0 {
				tenant := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "tenant")
				all = append(all, &one{MemoryUse: m.Use(tenant)})
			}
			h := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
			want := rapid.Int64Range(0, 500).Draw(t, "bytes")
			grows := want - h.bytes
			var refused error
			switch {
			case grows > 0 && h.tenant != "" && sum(h.tenant)+grows > share:
				refused = ErrShareFull
			case grows > 0 && sum("*")+grows > total:
				refused = ErrMemoryFull
			}
			if fits := m.checkFits(h.tenant, grows); grows > 0 && !errors.Is(fits, refused) {
				t.Fatalf("%d bytes more of %q: %v, want %v", grows, h.tenant, fits, refused)
			}
			if got := h.Set(want); !errors.Is(got, refused) {
				t.Fatalf("%d bytes more of %q: %v, want %v", grows, h.tenant, got, refused)
			}
			if refused == nil {
				h.bytes = want
			}
			if m.Used() != sum("*") {
				t.Fatalf("%d bytes are accounted for, want %d", m.Used(), sum("*"))
			}
			for _, tenant := range []string{"a", "b", "c"} {
				if got := m.byTenant[tenant]; got != sum(tenant) {
					t.Fatalf("%d bytes of %s are accounted for, want %d", got, tenant, sum(tenant))
				}
			}
		}
		for _, h := range all {
			h.Release()
			h.Release()
		}
		if m.Used() != 0 || len(m.byTenant) != 0 {
			t.Fatalf("%d bytes are left, by tenant %v", m.Used(), m.byTenant)
		}
	})
}

package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// Metrics tell how well the balancer knows an engine's cache: tokens that were cached without being expected,
// and tokens that were expected in the cache and computed.
func TestCacheMismatchIsCounted(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(pricedReply))) // 64 of 100 tokens are cached
	body := strings.Replace(plainBody, `"messages":[`, `"messages":[{"role":"system","content":"`+strings.Repeat("Read this first. ", 200)+`"},`, 1)
	series := func(kind string) float64 {
		return b.gathered()["skyserve_replica_cache_mismatch_tokens_total{kind="+kind+",replica=us-0}"]
	}
	expect(t, b.post(chatPath, body), http.StatusOK, "")
	b.settled()
	if got, other := series("not_expected"), series("not_cached"); got != 64 || other != 0 {
		t.Errorf("an unknown prompt: %g not expected, %g not cached", got, other)
	}
	expect(t, b.post(chatPath, body), http.StatusOK, "")
	b.settled()
	if got, other := series("not_expected"), series("not_cached"); got != 64 || other < 30 || other > 36 {
		t.Errorf("the same prompt again: %g not expected, %g not cached", got, other)
	}
}

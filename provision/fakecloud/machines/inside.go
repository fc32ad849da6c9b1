package machines

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// notice is how long before it takes a machine AWS says so.
const notice = 2 * time.Minute

// Inside is the metadata servers of all machines, each below what its cloud calls it.
func (c *Clouds) Inside(w http.ResponseWriter, r *http.Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	c.mu.Lock()
	taken, advised := c.taken[name], c.advised[name]
	c.mu.Unlock()
	switch {
	case path == "latest/api/token":
		fmt.Fprint(w, "token")
	case path == "latest/meta-data/spot/instance-action" && taken:
		fmt.Fprintf(w, `{"action":"terminate","time":%q}`, time.Now().Add(notice).UTC().Format(time.RFC3339))
	case path == "latest/meta-data/events/recommendations/rebalance" && advised:
		fmt.Fprintf(w, `{"noticeTime":%q}`, time.Now().UTC().Format(time.RFC3339))
	case path == "computeMetadata/v1/instance/preempted":
		fmt.Fprint(w, strings.ToUpper(fmt.Sprint(taken)))
	default:
		http.NotFound(w, r)
	}
}

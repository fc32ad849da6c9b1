package machines

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"skyserve/internal/testcloud"
)

// notice is how long before it takes a machine AWS says so.
const notice = 2 * time.Minute

// credentialsFor is how long the credentials of a machine last that it gets from its metadata
// server: as long as those of AWS do at most.
const credentialsFor = 6 * time.Hour

// rolePath is where a machine of AWS finds the name of its role, and below it the role's
// credentials.
const rolePath = "latest/meta-data/iam/security-credentials/"

// accountPath is where a machine at Google learns what account it runs as.
const accountPath = "computeMetadata/v1/instance/service-accounts/default/"

// metadataServer is the metadata server of one machine.
type metadataServer struct {
	host  string // and port
	close func()
}

// startMetadataServer starts the metadata server of a machine, at an address of the machine's own: that
// is how it is known who asks. A machine gets its identity here, and nowhere else.
func (c *Clouds) startMetadataServer(m testcloud.Booted) (metadataServer, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(m.Private, "0"))
	if err != nil {
		return metadataServer{}, err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.inside(w, r, m.ID) })}
	go func() { _ = server.Serve(ln) }() // it ends when it is closed
	return metadataServer{ln.Addr().String(), func() { _ = server.Close() }}, nil
}

// inside answers a machine, by what its cloud calls it.
func (c *Clouds) inside(w http.ResponseWriter, r *http.Request, name string) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	if role := c.AWS.Role(name); role != "" && strings.HasPrefix(path, rolePath) {
		c.serveRole(w, name, role, strings.TrimPrefix(path, rolePath))
		return
	}
	if strings.HasPrefix(path, "computeMetadata/") {
		w.Header().Set("Metadata-Flavor", "Google")
	}
	c.mu.Lock()
	taken, advised := c.taken[name], c.advised[name]
	c.mu.Unlock()
	switch {
	case path == "latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		fmt.Fprint(w, "token")
	case path == "latest/meta-data/spot/instance-action" && taken:
		fmt.Fprintf(w, `{"action":"terminate","time":%q}`, time.Now().Add(notice).UTC().Format(time.RFC3339))
	case path == "latest/meta-data/events/recommendations/rebalance" && advised:
		fmt.Fprintf(w, `{"noticeTime":%q}`, time.Now().UTC().Format(time.RFC3339))
	case path == "computeMetadata/v1/project/project-id":
		fmt.Fprint(w, c.opts.Project)
	case path == accountPath+"token":
		c.serveToken(w, name)
	case path == accountPath+"email":
		email, _ := c.Google.Credentials(name)
		fmt.Fprint(w, email)
	case path == "computeMetadata/v1/instance/preempted":
		fmt.Fprint(w, strings.ToUpper(fmt.Sprint(taken)))
	default:
		http.NotFound(w, r)
	}
}

// serveRole tells a machine of AWS the name of its role, or the role's credentials.
func (c *Clouds) serveRole(w http.ResponseWriter, machine, role, asked string) {
	switch asked {
	case "":
		fmt.Fprint(w, role)
	case role:
		key, secret, token := c.AWS.Credentials(machine)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{ // a caller that has disconnected retries
			"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": time.Now().UTC(), "Expiration": time.Now().Add(credentialsFor).UTC(),
			"AccessKeyId": key, "SecretAccessKey": secret, "Token": token,
		})
	default:
		http.Error(w, "no such role", http.StatusNotFound)
	}
}

// serveToken gives a machine at Google an access token of the account that it runs as.
func (c *Clouds) serveToken(w http.ResponseWriter, machine string) {
	email, token := c.Google.Credentials(machine)
	if email == "" {
		http.Error(w, "the machine has no service account", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int(time.Hour.Seconds())}) // a caller that has disconnected retries
}

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/telemetry"
)

// Adapter is a LoRA adapter of an engine.
type Adapter struct {
	// Name is the adapter's name, for messages.
	Name string `json:"name"`
	// Source is s3://bucket/prefix, gs://bucket/prefix, or hf://org/name on the Hugging Face hub.
	Source string `json:"from"`
	// MountPath is the directory of the container at which the files are mounted read-only.
	MountPath string `json:"to"`
}

// HubScheme is the scheme of repositories of the Hugging Face hub: hf://org/name.
const HubScheme = "hf://"

var adapterPattern = regexp.MustCompile(`^((s3|gs)://[^/]+/.+|hf://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)$`)

// adapterFile is the file that PEFT writes beside the weights of an adapter.
const adapterFile = "adapter_config.json"

// loraRanks are the highest ranks that vLLM can be started for (MaxLoRARanks in vllm/config/lora.py, 2026).
var loraRanks = []int{8, 16, 32, 64, 128, 256, 320, 512}

// rankArgs checks the downloaded adapters of a unit, and returns its flag for their highest rank.
func (s *System) rankArgs(u Unit) ([]string, error) {
	highest := 0
	for _, a := range u.Adapters {
		rank, err := adapterRank(weightsDir(s.Dir, a.Source))
		if err != nil {
			return nil, fmt.Errorf("adapter %s: %s: %w", a.Name, a.Source, err)
		}
		highest = max(highest, rank)
	}
	if highest == 0 || u.LoRARankFlag == "" {
		return nil, nil
	}
	i := slices.IndexFunc(loraRanks, func(r int) bool { return r >= highest })
	if i < 0 {
		return nil, fmt.Errorf("the rank of an adapter must be at most %d, got %d", loraRanks[len(loraRanks)-1], highest)
	}
	return []string{u.LoRARankFlag, strconv.Itoa(loraRanks[i])}, nil
}

// adapterRank returns the highest rank in the configuration of an adapter.
func adapterRank(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, adapterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("contains no %s; set source to the folder or repository of a PEFT adapter", adapterFile)
	}
	if err != nil {
		return 0, err
	}
	var config struct {
		Rank    int            `json:"r"`
		Pattern map[string]int `json:"rank_pattern"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return 0, fmt.Errorf("parsing %s: %w", adapterFile, err)
	}
	rank := config.Rank
	for _, r := range config.Pattern {
		rank = max(rank, r)
	}
	if rank < 1 {
		return 0, fmt.Errorf("%s: r must be at least 1, got %d", adapterFile, rank)
	}
	return rank, nil
}

// hubToken returns the access token of a unit for the Hugging Face hub; empty = none.
func (u Unit) hubToken() string {
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if token := cmp.Or(u.Secrets[name], u.Env[name]); token != "" {
			return token
		}
	}
	return ""
}

// fetchHub downloads a repository of the Hugging Face hub into a directory.
func fetchHub(ctx context.Context, repo, token, dir string, report func(telemetry.ByteCount)) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallelFetches, ResponseHeaderTimeout: 30 * time.Second, Proxy: http.ProxyFromEnvironment}}
	defer client.CloseIdleConnections()
	b := &hubRepo{name: repo, token: token, client: client}
	return fetcher{b, fetchBackoff}.fetchAll(ctx, HubScheme+repo, dir, report)
}

// hubRepo is a repository of the Hugging Face hub as a bucket. Its objects are the files of one commit.
type hubRepo struct {
	name, token string
	endpoint    string // base URL of the hub; empty = Hugging Face's
	client      *http.Client
}

// list returns the files of the newest commit of the branch main. For fetchAll,
// hf://ORG/NAME is the folder NAME/ of a bucket ORG, so the keys begin with prefix, NAME/.
func (b *hubRepo) list(ctx context.Context, prefix string) ([]object, error) {
	resp, err := b.get(ctx, "/api/models/"+b.name+"/revision/main?blobs=true", http.Header{})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var info struct {
		SHA          string    `json:"sha"`
		LastModified time.Time `json:"lastModified"`
		Siblings     []struct {
			Name string `json:"rfilename"`
			Size int64  `json:"size"`
		} `json:"siblings"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
		return nil, fmt.Errorf("parsing the list of files: %w", err)
	}
	var files []object
	for _, f := range info.Siblings {
		files = append(files, object{Key: prefix + f.Name, Size: f.Size, LastModified: info.LastModified, Generation: info.SHA})
	}
	return files, nil
}

func (b *hubRepo) open(ctx context.Context, o object, from, size int64) (io.ReadCloser, error) {
	_, repo, _ := strings.Cut(b.name, "/")
	path := (&url.URL{Path: strings.TrimPrefix(o.Key, repo+"/")}).EscapedPath()
	resp, err := b.get(ctx, "/"+b.name+"/resolve/"+o.Generation+"/"+path, rangeHeader(from, size))
	if err != nil {
		return nil, err
	}
	return partialBody(resp, from, size)
}

// get requests a path of the hub. The client follows redirects to its storage, without the token.
func (b *hubRepo) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, baseURLOr(b.endpoint, "https://huggingface.co")+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	if b.token != "" {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	resp.Body.Close()
	err = fmt.Errorf("%w: %s", &httpStatusError{req.URL.Path, resp.StatusCode}, http.StatusText(resp.StatusCode))
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusNotFound {
		err = fmt.Errorf("%w (the repository does not exist, or is private: set models[].secrets: {HF_TOKEN: env:HF_TOKEN} with a token that may read it)", err)
	}
	return nil, err
}

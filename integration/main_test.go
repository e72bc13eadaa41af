package integration

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// parallelTests is how many tests run beside each other. They wait for nodes most
// of the time, so that it may be more than there are cores.
const parallelTests = 6

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = parallel.Value.Set(strconv.Itoa(max(parallelTests, runtime.GOMAXPROCS(0))))
	}
	os.Exit(m.Run())
}

package vfs

import (
	"fmt"
	"math/rand/v2"
)

// Choose picks one of n ≥ 1 alternatives, 0 to n−1. Whatever has several
// possible outcomes asks one, so that who calls decides whether to walk all of
// them or some.
type Choose func(n int) int

// Enumerate calls run once for each path through the choices that run makes,
// the first alternatives first, until all are walked or limit runs are made. It
// returns the number of runs and whether they were all. Run must make the same
// choices again as long as it gets the same answers.
func Enumerate(limit int, run func(Choose)) (runs int, complete bool) {
	type fork struct{ taken, of int }
	var path []fork
	for runs < limit {
		depth := 0
		run(func(n int) int {
			if n < 1 {
				panic(fmt.Sprintf("vfs: choice among %d", n))
			}
			if depth == len(path) {
				path = append(path, fork{0, n})
			}
			if path[depth].of != n {
				panic(fmt.Sprintf("vfs: choice %d was among %d, is among %d", depth, path[depth].of, n))
			}
			depth++
			return path[depth-1].taken
		})
		runs++
		path = path[:depth]
		for depth > 0 && path[depth-1].taken+1 == path[depth-1].of {
			depth--
		}
		if depth == 0 {
			return runs, true
		}
		path = path[:depth]
		path[depth-1].taken++
	}
	return runs, false
}

// Seeded returns choices drawn from a seed, for walks that are too long to
// enumerate.
func Seeded(seed uint64) Choose {
	source := rand.New(rand.NewPCG(seed, 0))
	return source.IntN
}
